// Package execadapter runs helpers of the older kind, programs that read one
// node as JSON on standard input and write one JSON document on standard
// output, behind the contract of package helper. It is itself such a plugin.
package execadapter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
	"github.com/choria-provisioner/provisioner/helper/internal/lines"
)

const (
	// Name is the adapter's name as a plugin.
	Name = "exec-helper"

	// DefaultTimeout is what a program has for one node.
	DefaultTimeout = 10 * time.Second

	// MaxOutput is how many bytes a program may write to standard output.
	MaxOutput = 1 << 20

	// maxLine is how many bytes of a line on standard error are kept.
	maxLine = 8 << 10

	// outputDelay is how long the output of a program that ended is read on: a
	// child that it left behind may hold the output open.
	outputDelay = 500 * time.Millisecond
)

// Config is a program to run for each node.
type Config struct {
	// Command is the program and its arguments, at least one.
	Command []string
	// Timeout is what the program has for one node; 0 is DefaultTimeout.
	Timeout time.Duration
	// Build is the host's version.
	Build string
}

// Serve is the adapter as a plugin: it returns when the host ends it, after the
// programs in flight were killed.
func Serve(cfg Config) error {
	a, err := newAdapter(cfg)
	if err != nil {
		return err
	}
	helper.Serve(a.plugin())
	// The host's end of the call cancels the programs in flight; their process
	// groups must be gone before this process is.
	a.running.Wait()

	return nil
}

type adapter struct {
	cfg     Config
	env     []string
	running sync.WaitGroup
}

func newAdapter(cfg Config) (*adapter, error) {
	if len(cfg.Command) == 0 {
		return nil, errors.New("no command is set")
	}
	if _, err := exec.LookPath(cfg.Command[0]); err != nil {
		return nil, err
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}

	return &adapter{cfg: cfg, env: environment(os.Environ())}, nil
}

// environment is what the programs inherit: all but the handshake that was
// meant for the adapter.
func environment(env []string) []string {
	return slices.DeleteFunc(env, func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(helper.HandshakeEnv(), name)
	})
}

func (a *adapter) plugin() *helper.Plugin {
	return &helper.Plugin{
		Name:          Name,
		Build:         a.cfg.Build,
		ConfigureNode: a.configureNode,
		Capabilities: []helperv1.Capability{
			helperv1.Capability_CAPABILITY_CONFIGURE_WITH_VERSION,
			helperv1.Capability_CAPABILITY_RAW_CLAIMS,
		},
	}
}

func (a *adapter) configureNode(ctx context.Context, req *helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error) {
	a.running.Add(1)
	defer a.running.Done()

	in, err := encodeNode(req.GetNode())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	out, err := a.run(ctx, in)
	if err != nil {
		return nil, err
	}
	resp, err := decodeReply(out)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "%s: %v", a.cfg.Command[0], err)
	}

	return resp, nil
}

// run runs the program once. An error is a status of the contract.
func (a *adapter) run(ctx context.Context, in []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()

	cmd := exec.CommandContext(ctx, a.cfg.Command[0], a.cfg.Command[1:]...)
	cmd.Env = a.env
	cmd.SysProcAttr = procAttr()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = outputDelay

	var lastLine string
	log := hclog.FromContext(ctx)
	stderr := lines.NewWriter(maxLine, func(line string, _ bool) {
		lastLine = line
		log.Info(line, "stream", "stderr")
	})
	stdout := &boundedBuffer{max: MaxOutput, full: cancel}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), stdout, stderr

	err := cmd.Run()
	stderr.Flush()

	return stdout.buf, a.judge(ctx, stdout, lastLine, err)
}

// judge turns the end of a program into a status.
func (a *adapter) judge(ctx context.Context, stdout *boundedBuffer, lastLine string, err error) error {
	name := a.cfg.Command[0]
	// One that ended in order may have left a child with its output.
	ended := err == nil || errors.Is(err, exec.ErrWaitDelay)
	var exit *exec.ExitError
	switch {
	case stdout.overflowed:
		return status.Errorf(codes.Internal, "%s wrote more than %d bytes to standard output", name, stdout.max)
	case errors.Is(ctx.Err(), context.DeadlineExceeded) && !ended:
		return status.Errorf(codes.DeadlineExceeded, "%s timed out after %v", name, a.cfg.Timeout)
	case ctx.Err() != nil && !ended:
		return status.Errorf(codes.Canceled, "%s was killed: the host ended the call", name)
	case errors.As(err, &exit):
		return status.Errorf(codes.Internal, "%s failed: %v%s", name, exit, said(lastLine))
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return status.Errorf(codes.ResourceExhausted, "%s could not be started: %v", name, err)
	case !ended:
		return status.Errorf(codes.Internal, "%s could not be run: %v", name, err)
	case len(stdout.buf) == 0:
		return status.Errorf(codes.Internal, "%s wrote nothing to standard output%s", name, said(lastLine))
	}

	return nil
}

// said quotes the last line that a program wrote to standard error.
func said(line string) string {
	if line == "" {
		return ""
	}

	const enough = 256
	if len(line) > enough {
		line = line[:enough] + "…"
	}
	return fmt.Sprintf("; its last line on standard error: %s", line)
}

// boundedBuffer keeps what fits and calls full at the first byte too many.
type boundedBuffer struct {
	max        int
	full       func()
	buf        []byte
	overflowed bool
}

func (b *boundedBuffer) Write(p []byte) (int, error) {
	if len(b.buf)+len(p) > b.max {
		b.overflowed = true
		b.full()
		return len(p), nil
	}
	b.buf = append(b.buf, p...)

	return len(p), nil
}
