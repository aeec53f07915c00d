package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/choria-io/fisk"

	"github.com/choria-provisioner/provisioner/internal/demo"
)

// demoCommand is the command line of the demo.
type demoCommand struct {
	cli        *cli
	opts       demo.Options
	workersSet bool
}

// addDemo adds "demo", and the hidden command by which the demo's provisioner
// starts this program as its helper.
func addDemo(c *cli, app *fisk.Application) {
	cmd := &demoCommand{cli: c}

	d := app.Command("demo", "Provisions a simulated fleet, to see the provisioner at work").Action(cmd.run)
	d.Flag("nodes", "How many nodes to simulate").Default("500").IntVar(&cmd.opts.Nodes)
	d.Flag("workers", "How many nodes to work on at once, else the provisioner's default").IsSetByUser(&cmd.workersSet).IntVar(&cmd.opts.Workers)
	d.Flag("json", "End with one line of JSON on standard output; the rest goes to standard error").UnNegatableBoolVar(&cmd.opts.JSON)
	d.Flag("timeout", "How long it may take; the default grows with the number of nodes").DurationVar(&cmd.opts.Timeout)
	d.Flag("monitor-port", "Port of the provisioner's metrics, else any that is free").PlaceHolder("PORT").IntVar(&cmd.opts.MonitorPort)
	d.Flag("fault", "Add a node that misbehaves in this way; may be repeated. A name that does not exist shows all there are").PlaceHolder("NAME").StringsVar(&cmd.opts.Faults)
	d.Flag("log", "Keep the provisioner's log in this file").PlaceHolder("FILE").StringVar(&cmd.opts.LogFile)

	app.Command(demo.HelperCommand, "Serves as the helper of the demo").Hidden().Action(func(*fisk.ParseContext) error {
		demo.ServeHelper(version)
		return nil
	})
}

func (cmd *demoCommand) run(*fisk.ParseContext) error {
	if cmd.workersSet && cmd.opts.Workers == 0 {
		return fmt.Errorf("--workers is 0 and must be 1 to %d", demo.MaxWorkers)
	}
	cmd.opts.Version = version
	cmd.opts.Stdout, cmd.opts.Stderr = cmd.cli.stdout, cmd.cli.stderr

	// the terminal was closed
	ctx, stop := signal.NotifyContext(cmd.cli.ctx, syscall.SIGHUP)
	defer stop()
	// Somebody who asks for the signal gets an error from a write into a closed
	// pipe; else the program would end there and then.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	defer signal.Stop(pipe)

	return demo.Run(ctx, cmd.opts)
}
