package supervisor

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/helper/internal/lines"
)

const (
	// maxHandshake bounds the line a plugin greets with; it holds a certificate
	// of about 1 KiB.
	maxHandshake = 16 << 10

	// drainTime is how long the output of a process that ended is still read. A
	// child that left the session could hold it open for ever.
	drainTime = 250 * time.Millisecond
)

// process is one run of a plugin's program: go-plugin's runner.Runner.
//
// It does what go-plugin's own runner does not: standard input is empty, the
// children are killed too, a long or malformed line on an output neither blocks
// the plugin nor ends the host, and the end of the process is seen although a
// child holds its output open.
type process struct {
	path string
	args []string
	env  []string
	log  *logrus.Entry

	// stdout is where go-plugin reads the handshake: the first line alone.
	stdout      *io.PipeReader
	stdoutWrite *io.PipeWriter

	// exited is closed when the process has ended; err then says how.
	exited chan struct{}
	err    error

	mu       sync.Mutex
	pid      int
	killed   bool
	lastLine string
}

func newProcess(path string, args, env []string, log *logrus.Entry) *process {
	p := &process{path: path, args: args, env: env, log: log, exited: make(chan struct{})}
	p.stdout, p.stdoutWrite = io.Pipe()

	return p
}

// Start implements runner.Runner.
func (p *process) Start(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.killed {
		return errors.New("the start was cancelled")
	}

	outRead, outWrite, err := os.Pipe()
	if err != nil {
		return err
	}
	errRead, errWrite, err := os.Pipe()
	if err != nil {
		return errors.Join(err, outRead.Close(), outWrite.Close())
	}

	cmd := exec.Command(p.path, p.args...)
	cmd.Env = p.env
	cmd.Stdout, cmd.Stderr = outWrite, errWrite
	cmd.SysProcAttr = procAttr()

	started := make(chan error)
	go p.run(cmd, started, outRead, errRead)
	err = <-started
	_ = outWrite.Close()
	_ = errWrite.Close()
	if err == nil {
		p.pid = cmd.Process.Pid
	}

	return err
}

// run starts the process and stays with it to its end, on one thread: the kernel
// ends the process with the thread that started it.
func (p *process) run(cmd *exec.Cmd, started chan<- error, stdout, stderr *os.File) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(p.exited)
	defer stderr.Close()
	defer stdout.Close()

	err := cmd.Start()
	started <- err
	if err != nil {
		p.err = err
		_ = p.stdoutWrite.Close()
		return
	}

	drained := make(chan struct{})
	go func() {
		defer close(drained)
		var readers sync.WaitGroup
		readers.Go(func() { p.readStdout(stdout) })
		readers.Go(func() { p.readStderr(stderr) })
		readers.Wait()
	}()

	p.err = cmd.Wait()
	killTree(cmd.Process.Pid)

	select {
	case <-drained:
	case <-time.After(drainTime):
		_ = stdout.Close()
		_ = stderr.Close()
		<-drained
	}
}

// readStdout hands the first line to go-plugin and logs the rest.
func (p *process) readStdout(r io.Reader) {
	br := bufio.NewReaderSize(r, maxHandshake)
	greeting, err := br.ReadSlice('\n')
	// An io.Pipe blocks until it is read, and go-plugin may have given up.
	go func() {
		_, _ = p.stdoutWrite.Write(greeting)
		_ = p.stdoutWrite.Close()
	}()
	if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
		return
	}

	w := p.output("stdout")
	_, _ = io.Copy(w, br)
	w.Flush()
}

func (p *process) readStderr(r io.Reader) {
	w := lines.NewWriter(maxLine, func(line string, cut bool) {
		if words := logLine(p.log, line, cut); words != "" {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.lastLine = words
		}
	})
	_, _ = io.Copy(w, r)
	w.Flush()
}

// output returns a writer that logs what a plugin prints where it should not.
func (p *process) output(stream string) *lines.Writer {
	log := p.log.WithField("stream", stream)
	return lines.NewWriter(maxLine, func(line string, cut bool) { logLine(log, line, cut) })
}

// lastWords is the last telling line on standard error.
func (p *process) lastWords() string {
	p.mu.Lock()
	defer p.mu.Unlock()

	const enough = 512
	line := p.lastLine
	if len(line) > enough {
		line = line[:enough] + "…"
	}

	return line
}

// hasExited says whether the process has ended.
func (p *process) hasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// endedByItself says whether the process has ended, and not because it was
// killed here.
func (p *process) endedByItself() bool {
	if !p.hasExited() {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()

	var exit *exec.ExitError
	if p.killed && errors.As(p.err, &exit) {
		ws, ok := exit.Sys().(syscall.WaitStatus)
		return ok && ws.Signal() != syscall.SIGKILL
	}
	return true
}

// Kill implements runner.Runner: the process and its children are gone at once,
// and one that has not started yet never will.
func (p *process) Kill(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.killed = true
	if p.pid != 0 && !p.hasExited() {
		killTree(p.pid)
	}

	return nil
}

// Wait implements runner.Runner.
func (p *process) Wait(context.Context) error {
	<-p.exited
	return p.err
}

// Stdout implements runner.Runner.
func (p *process) Stdout() io.ReadCloser { return p.stdout }

// Stderr implements runner.Runner. The process reads its standard error itself:
// go-plugin's reader panics on a JSON line with an unexpected type.
func (p *process) Stderr() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// Name implements runner.Runner.
func (p *process) Name() string { return p.path }

// ID implements runner.Runner.
func (p *process) ID() string {
	p.mu.Lock()
	defer p.mu.Unlock()

	return strconv.Itoa(p.pid)
}

// Diagnose implements runner.Runner.
func (p *process) Diagnose(context.Context) string { return "" }

// PluginToHost implements runner.Runner.
func (p *process) PluginToHost(network, addr string) (string, string, error) {
	return network, addr, nil
}

// HostToPlugin implements runner.Runner.
func (p *process) HostToPlugin(network, addr string) (string, string, error) {
	return network, addr, nil
}
