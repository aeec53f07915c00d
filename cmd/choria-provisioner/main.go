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
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// cli is what every command is given: where to read and write, and a context
// that ends with SIGINT or SIGTERM.
type cli struct {
	ctx    context.Context
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
}

// silentError ends the program with code 1 after the command has said why.
type silentError struct{}

func (silentError) Error() string { return "failed" }

// run is the program without its globals; it returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	c := &cli{ctx: ctx, stdin: stdin, stdout: stdout, stderr: stderr}

	code := 0
	app := fisk.New("choria-provisioner", "Enrols Choria servers that wait in provisioning mode")
	app.Version(version)
	app.UsageWriter(stdout)
	app.ErrorWriter(stderr)
	app.Terminate(func(status int) { code = status })
	app.HelpFlag.Short('h')

	for _, add := range commands {
		add(c, app)
	}

	_, err := app.Parse(args)
	var silent silentError
	switch {
	case errors.As(err, &silent):
		return 1
	case err != nil:
		fmt.Fprintf(stderr, "choria-provisioner: %v\n", err)
		return 1
	}

	return code
}

// commands are the commands of the program, each in a file of its own.
var commands = []func(c *cli, app *fisk.Application){
	addRun,
	addCheck,
	addHelper,
}
