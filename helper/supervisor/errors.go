package supervisor

import (
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Errors of the host's own, beside those a helper answers with. Every error of
// a call has a gRPC status code (status.Code), these too, and the code says
// what to do with the node; the table is in the contract's proto file.
var (
	// ErrUnavailable says that no helper runs right now: it is being restarted,
	// or the supervisor is not started or closed. Code UNAVAILABLE.
	ErrUnavailable error = &hostError{codes.Unavailable, "the helper is not running"}

	// ErrNoDecision says that an answer decides nothing: no branch of its oneof
	// is set. Code INTERNAL.
	ErrNoDecision error = &hostError{codes.Internal, "the helper's answer holds no decision"}

	// ErrTooLarge says that a message is over helper.MaxMessageSize. Code
	// OUT_OF_RANGE.
	ErrTooLarge error = &hostError{codes.OutOfRange, "the message is too large"}

	// ErrChecksum says that the plugin's file is not the one that was pinned.
	ErrChecksum error = &hostError{codes.Unavailable, "the helper's checksum is wrong"}
)

type hostError struct {
	code codes.Code
	text string
}

func (e *hostError) Error() string              { return e.text }
func (e *hostError) GRPCStatus() *status.Status { return status.New(e.code, e.text) }

// callError is a failed call. Its text names helper and method, its status is
// that of the cause.
type callError struct {
	helper, method string
	cause          error
}

func (e *callError) Unwrap() error              { return e.cause }
func (e *callError) GRPCStatus() *status.Status { return status.New(status.Code(e.cause), e.Error()) }

func (e *callError) Error() string {
	text := e.cause.Error()
	if st, ok := status.FromError(e.cause); ok {
		text = st.Message()
	}

	return fmt.Sprintf("helper %s: %s: %s (%s)", e.helper, e.method, text, status.Code(e.cause))
}
