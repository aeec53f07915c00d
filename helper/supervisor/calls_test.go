package supervisor

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// boundless is a helper made without the SDK, which knows no limits.
type boundless struct {
	helperv1.UnimplementedNodeConfigurerServer
}

func (boundless) ConfigureNode(_ context.Context, req *helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error) {
	if req.GetNode().GetIdentity() == "busy" {
		return nil, status.Error(codes.ResourceExhausted, "all signers are busy")
	}
	return helper.Configure(map[string]string{"a": strings.Repeat("x", helper.MaxMessageSize)}), nil
}

// The limit on an answer and a helper's own RESOURCE_EXHAUSTED have one code,
// but not one meaning.
func TestReadErrorTellsTheLimit(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	helperv1.RegisterNodeConfigurerServer(s, boundless{})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() {
		s.Stop()
		<-served
	}()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(helper.MaxMessageSize)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	for identity, want := range map[string]error{"big": ErrTooLarge, "busy": nil} {
		_, err := helperv1.NewNodeConfigurerClient(conn).ConfigureNode(t.Context(), &helperv1.ConfigureNodeRequest{Node: &helperv1.Node{Identity: identity}})
		if status.Code(err) != codes.ResourceExhausted {
			t.Fatalf("%s: %v", identity, err)
		}
		err = readError(t.Context(), nil, err)
		if want != nil && !errors.Is(err, want) || want == nil && status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%s: got %v", identity, err)
		}
	}
}

// A call that its helper's end cut short leaves the node waiting, whatever code
// gRPC has for that; the helper's own words stay its own.
func TestReadErrorTellsTheEnd(t *testing.T) {
	cases := []struct {
		why string
		err error
		is  bool
	}{
		{"killed while it thought", status.Error(codes.Unavailable, "error reading from server: EOF"), true},
		{"killed before the call", status.Error(codes.Unavailable, `connection error: desc = "transport: error while dialing: dial unix /x: connect: connection refused"`), true},
		{"killed within its answer", status.Error(codes.Internal, "unexpected EOF"), true},
		{"replaced because it hung", status.Error(codes.Canceled, "grpc: the client connection is closing"), true},
		{"the helper's own upstream is down", status.Error(codes.Unavailable, "the CA is down"), false},
		{"a fault of its own", status.Error(codes.Internal, "no such site"), false},
		{"something it gave up itself", status.Error(codes.Canceled, "context canceled"), false},
	}

	alive := &instance{proc: &process{exited: make(chan struct{})}}
	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			err := readError(t.Context(), alive, c.err)
			if errors.Is(err, ErrUnavailable) != c.is || !c.is && err != c.err {
				t.Errorf("got %v", err)
			}
		})
	}
}

// verbatim sends the bytes of an answer as they are.
type verbatim struct{}

func (verbatim) Name() string                  { return "proto" }
func (verbatim) Unmarshal([]byte, any) error   { return nil }
func (verbatim) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

// What is no message of the contract is a fault of the helper, and ends nothing.
func TestAnswersOfEveryShape(t *testing.T) {
	cases := map[string]struct {
		answer []byte
		want   codes.Code
	}{
		"no bytes decide nothing":                  {nil, codes.OK},
		"bytes that are no protobuf":               {[]byte("\xff\xff\xff\xff"), codes.Internal},
		"a length beyond the end":                  {[]byte{0x0a, 0x7f, 0x00}, codes.Internal},
		"text that is not UTF-8":                   {[]byte{0x12, 0x04, 0x0a, 0x02, 0xff, 0xfe}, codes.Internal},
		"fields of a later version":                {[]byte{0xfa, 0x01, 0x01, 0x61}, codes.OK},
		"a decision of a later version is none":    {[]byte{0x22, 0x00}, codes.OK},
		"two decisions are the last":               {[]byte{0x12, 0x00, 0x1a, 0x00}, codes.OK},
		"a time to wait that no duration can hold": {[]byte{0x12, 0x0d, 0x12, 0x0b, 0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0x10}, codes.Internal},
	}

	var answer []byte
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.ForceServerCodec(verbatim{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		return stream.SendMsg(&answer)
	}))
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() {
		s.Stop()
		<-served
	}()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	for why, c := range cases {
		t.Run(why, func(t *testing.T) {
			answer = c.answer
			got, err := helperv1.NewNodeConfigurerClient(conn).ConfigureNode(t.Context(), &helperv1.ConfigureNodeRequest{})
			if err != nil {
				err = readError(t.Context(), nil, err)
			}
			if status.Code(err) != c.want {
				t.Errorf("got %v, %v, want %v", got, err, c.want)
			}
			// Whatever arrives, the host's rules read it without harm.
			_ = helper.CheckAnswer(got)
		})
	}
}

// lateContext is past its deadline while its timer has not run: gRPC, which
// looks at the clock, can end a call then.
type lateContext struct {
	context.Context
	deadline time.Time
}

func (c lateContext) Deadline() (time.Time, bool) { return c.deadline, true }

func TestDeadlineInOurWords(t *testing.T) {
	const foreign = "stream terminated by RST_STREAM with error code: CANCEL"
	err := status.Error(codes.DeadlineExceeded, foreign)

	t.Run("the call's own deadline, seen before its timer ran", func(t *testing.T) {
		parent, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(20*time.Millisecond, func() { cancel(errors.New("no answer within 1s")) })
		got := readError(lateContext{parent, time.Now()}, &instance{}, err)
		if status.Code(got) != codes.DeadlineExceeded || status.Convert(got).Message() != "no answer within 1s" {
			t.Errorf("got %v", got)
		}
	})

	t.Run("something the helper waited for", func(t *testing.T) {
		got := readError(lateContext{t.Context(), time.Now().Add(time.Hour)}, &instance{}, err)
		if status.Convert(got).Message() != foreign {
			t.Errorf("got %v", got)
		}
	})
}
