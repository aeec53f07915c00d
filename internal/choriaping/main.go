// Command choriaping calls rpcutil#ping on one Choria server, as an
// administrator of the fleet does with go-choria's own client. It exits 0 when
// that server, and it alone, answered.
//
// A program of its own because go-choria's client, which opens and drops
// connections for every call, has data races that a test under the race
// detector would be blamed for.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/choria-io/go-choria/choria"
	"github.com/choria-io/go-choria/client/rpcutilclient"
	"github.com/choria-io/go-choria/config"
	"github.com/sirupsen/logrus"
)

func main() {
	clientConfig := flag.String("config", "", "Choria client configuration `file`")
	collective := flag.String("collective", "mcollective", "collective that the server is in")
	timeout := flag.Duration("timeout", 3*time.Second, "time to wait for the answer")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: choriaping [flags] IDENTITY")
		os.Exit(2)
	}

	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	err := ping(ctx, *clientConfig, *collective, flag.Arg(0))
	if err != nil {
		fmt.Fprintf(os.Stderr, "choriaping: %v\n", err)
		os.Exit(1)
	}
}

func ping(ctx context.Context, clientConfig, collective, identity string) error {
	cfg, err := config.NewConfig(clientConfig)
	if err != nil {
		return err
	}
	cfg.Collectives = []string{collective}
	cfg.MainCollective = collective
	cfg.CustomLogger = logrus.New()

	framework, err := choria.NewWithConfig(cfg)
	if err != nil {
		return err
	}
	client, err := rpcutilclient.New(framework)
	if err != nil {
		return err
	}

	result, err := client.OptionWorkers(1).OptionTargets([]string{identity}).Ping().Do(ctx)
	if err != nil {
		return err
	}

	outputs := result.AllOutputs()
	if len(outputs) != 1 {
		return fmt.Errorf("%d answers for %s", len(outputs), identity)
	}
	details := outputs[0].ResultDetails()
	if details.Sender() != identity || !details.OK() {
		return fmt.Errorf("%s answered for %s: %s", details.Sender(), identity, details.StatusMessage())
	}

	return nil
}
