// Command choria-provisioner enrols Choria servers that wait in provisioning
// mode.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/choria-io/fisk"
)

// version is set by the linker.
var version = "0.0.0-development"

func main() {
	// A terminal that closes and an operator who wants a dump are no reason to
	// leave a pid file, a helper or a lease behind.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// cli is what every command is given: where to read and write, and a context
// that ends with a signal.
type cli struct {
	ctx    context.Context
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
}

// await is do, or the end of ctx: reading a pipe ends with no signal.
func await[T any](ctx context.Context, do func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := do()
		done <- result{value, err}
	}()

	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, errors.New("interrupted")
	}
}

// silentError ends the program with code 1 after the command has said why.
type silentError struct{}

func (silentError) Error() string { return "failed" }

// exit is the panic that ends the program with a code.
type exit int

// run is the program without its globals; it returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) (code int) {
	c := &cli{ctx: ctx, stdin: stdin, stdout: stdout, stderr: stderr}

	app := fisk.New("choria-provisioner", "Enrols Choria servers that wait in provisioning mode")
	app.Version(version)
	app.UsageWriter(stdout)
	app.ErrorWriter(stderr)
	// --help and --version end parsing in the middle: without that, what else is
	// missing on the command line would be an error.
	app.Terminate(func(status int) { panic(exit(status)) })
	defer func() {
		switch p := recover().(type) {
		case nil:
		case exit:
			code = int(p)
		default:
			panic(p)
		}
	}()
	app.HelpFlag.Short('h')

	for _, add := range commands {
		add(c, app)
	}

	_, err := app.Parse(args)
	var silent silentError
	var coded coded
	switch {
	case errors.As(err, &silent):
		return 1
	case errors.As(err, &coded):
		fmt.Fprintf(stderr, "choria-provisioner: %v\n", err)
		return coded.code
	case err != nil:
		fmt.Fprintf(stderr, "choria-provisioner: %v\n", err)
		return 1
	}

	return 0
}

// commands are the commands of the program, each in a file of its own.
var commands = []func(c *cli, app *fisk.Application){
	addRun,
	addCheck,
	addHelper,
	addDemo,
	addVersion,
	addVersions,
	addStatus,
	addNodes,
	addLedger,
	addPlan,
}
