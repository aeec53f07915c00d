// Command bench measures the daemon on a simulated fleet, and beside it the
// same daemon with the calls of the older provisioner, which connects twice for
// every call. docs/performance.md says what it showed.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/choria-io/fisk"
)

func main() {
	b := &bench{stdout: os.Stdout}

	app := fisk.New("bench", "Measures the provisioner on a simulated fleet")
	app.Flag("nodes", "How many nodes to simulate").Default("2000").IntVar(&b.nodes)
	app.Flag("workers", "How many nodes to work on at once, else the provisioner's default").IntVar(&b.workers)
	app.Flag("runs", "How often to measure each way; every other time in reverse order").Default("1").IntVar(&b.runs)
	app.Flag("timeout", "How long one measurement may take").Default("15m").DurationVar(&b.timeout)
	app.Flag("only", "Measure this way alone, repeatable").EnumsVar(&b.only, wayNames()...)
	app.Flag("daemon", "The provisioner").Required().ExistingFileVar(&b.daemon)
	app.Flag("older", "The provisioner built with older/overlay.json").Required().ExistingFileVar(&b.older)
	app.MustParseWithUsage(os.Args[1:])

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := b.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// bench is a series of measurements.
type bench struct {
	nodes, workers, runs int
	timeout              time.Duration
	only                 []string
	daemon, older        string

	stdout io.Writer
}

// run writes one line of JSON for each measurement, and then what they say
// together.
func (b *bench) run(ctx context.Context) error {
	for _, program := range []*string{&b.daemon, &b.older} {
		path, err := filepath.Abs(*program)
		if err != nil {
			return err
		}
		*program = path
	}
	measured := ways()
	if len(b.only) > 0 {
		measured = slices.DeleteFunc(measured, func(w way) bool { return !slices.Contains(b.only, w.name()) })
	}

	var results []*result
	for run := range b.runs {
		for _, w := range measured {
			r, err := b.measure(ctx, w)
			if err != nil {
				return fmt.Errorf("%s, run %d: %w", w.name(), run+1, err)
			}
			r.Run = run + 1
			if err := json.NewEncoder(b.stdout).Encode(r); err != nil {
				return err
			}
			results = append(results, r)
		}
		slices.Reverse(measured)
	}

	return compare(b.stdout, results)
}
