package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/choria-io/fisk"
	"github.com/choria-io/go-choria/choria"
	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/deploy/versions"
	"github.com/choria-provisioner/provisioner/status"
)

// connectLimit is how long a command tries to reach a broker.
const connectLimit = 10 * time.Second

// statusCommand shows all instances.
type statusCommand struct {
	cli          *cli
	config       string
	choriaConfig string
	json         bool
	watch        bool
	every        time.Duration
}

func addStatus(c *cli, app *fisk.Application) {
	cmd := &statusCommand{cli: c}

	s := app.Command("status", "Shows every running provisioner of the network: who leads, what runs, which versions were rolled back").Action(cmd.run)
	s.Flag("config", "The provisioner's configuration file").PlaceHolder("FILE").Required().StringVar(&cmd.config)
	s.Flag("choria-config", "The Choria client configuration file, else that of the user").PlaceHolder("FILE").StringVar(&cmd.choriaConfig)
	s.Flag("json", "Print JSON: a list, with --watch one on each line").UnNegatableBoolVar(&cmd.json)
	s.Flag("watch", "Ask again and again, until a signal").UnNegatableBoolVar(&cmd.watch)
	s.Flag("every", "How long --watch waits").Default("2s").DurationVar(&cmd.every)
}

func (cmd *statusCommand) run(*fisk.ParseContext) error {
	ctx := cmd.cli.ctx
	nc, err := cmd.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()

	for first := true; ; first = false {
		list, err := status.Ask(ctx, nc)
		if err != nil {
			if ctx.Err() != nil && !first {
				return nil
			}
			return err
		}
		if err := cmd.print(list, first); err != nil {
			return err
		}
		if !cmd.watch {
			if len(list) == 0 {
				return errors.New("no provisioner answers; is one running, and of a version that has a status?")
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(cmd.every, 100*time.Millisecond)):
		}
	}
}

// connect connects as the daemon does.
func (cmd *statusCommand) connect(ctx context.Context) (*nats.Conn, error) {
	cfg, _, err := loadConfig(cmd.cli, cmd.config)
	if err != nil {
		return nil, err
	}
	if cmd.choriaConfig == "" {
		cmd.choriaConfig = choria.UserConfig()
	}
	logger := logrus.New()
	logger.SetOutput(cmd.cli.stderr)
	logger.SetLevel(logrus.ErrorLevel)
	fw, err := newFramework(cfg, cmd.choriaConfig, logger)
	if err != nil {
		return nil, err
	}

	limit := fmt.Errorf("no connection to a broker within %v", connectLimit)
	bounded, cancel := context.WithTimeoutCause(ctx, connectLimit, limit)
	// go-choria tries for ever, and not always looks at its context.
	conn, err := await(bounded, func() (*nats.Conn, error) {
		conn, err := fw.NewConnector(bounded, fw.MiddlewareServers, "provisioner status", logger.WithField("component", "network"))
		if err != nil {
			return nil, err
		}
		return conn.Nats(), nil
	})
	switch {
	case ctx.Err() != nil:
		err = errors.New("interrupted")
	case bounded.Err() != nil:
		err = fmt.Errorf("%w: do the choria configuration %s and the password name the right one?", limit, cmd.choriaConfig)
	case err == nil:
		// The connection needs its context, to sign, until it is closed.
		context.AfterFunc(ctx, cancel)
		return conn, nil
	}
	cancel()

	return nil, err
}

func (cmd *statusCommand) print(list []status.Status, first bool) error {
	if cmd.json {
		if list == nil {
			list = []status.Status{}
		}
		enc := json.NewEncoder(cmd.cli.stdout)
		enc.SetEscapeHTML(false)
		if !cmd.watch {
			enc.SetIndent("", "  ")
		}
		return enc.Encode(list)
	}
	if cmd.watch {
		if !first {
			fmt.Fprintln(cmd.cli.stdout)
		}
		fmt.Fprintf(cmd.cli.stdout, "%s, %d instances\n", time.Now().Format(time.RFC3339), len(list))
	}

	return printStatus(cmd.cli.stdout, list)
}

// printStatus prints a line for each instance, and below them what a person
// should know.
func printStatus(w io.Writer, list []status.Status) error {
	if len(list) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "IDENTITY\tINSTANCE\tBUILD\tVERSION\tLEADER\tGATE\tQUEUE\tWAITING\tWORKERS\tHELPER\tLEDGER\tUP")
	for _, s := range list {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d/%d\t%s\t%s\t%s\n",
			plain(s.Identity), plain(s.Instance), plain(s.Build), versionCell(s.Version), leaderCell(s.Election), gateCell(s.Gate),
			s.Queue, s.Waiting, s.Workers.Busy, s.Workers.Limit, helperCell(s.Helper), plain(s.Ledger), time.Since(s.Started).Round(time.Second))
	}
	if err := table.Flush(); err != nil {
		return err
	}

	var notes strings.Builder
	for _, s := range list {
		note := func(format string, values ...any) {
			fmt.Fprintf(&notes, "%s (%s): %s\n", plain(s.Identity), plain(s.Instance), plain(fmt.Sprintf(format, values...)))
		}
		if !s.Gate.Open && s.Gate.Why != "" {
			note("paused: %s", s.Gate.Why)
		}
		v := s.Version
		if v == nil {
			continue
		}
		if !v.Proved {
			note("version %s has not proved itself: %s", v.Running, v.Missing)
		}
		switch {
		case v.StandsAside:
			note("makes way for %s", v.Successor)
		case v.Successor != "" && v.Waits != "":
			note("does not make way for %s: %s", v.Successor, v.Waits)
		}
		if v.Halted != "" {
			note("its launcher is halted: %s", v.Halted)
		}
		for _, verdict := range v.Verdicts {
			note("%s", verdictText(verdict))
		}
	}
	if notes.Len() > 0 {
		_, err := fmt.Fprintf(w, "\n%s", notes.String())
		return err
	}

	return nil
}

// verdictText is a verdict for people.
func verdictText(v versions.Verdict) string {
	text := v.From + " was " + v.Outcome
	if v.Outcome == "" {
		text = v.From + " is barred"
	}
	if v.To != "" {
		text += " to " + v.To
	}
	if !v.At.IsZero() {
		text += " at " + v.At.Format(time.RFC3339)
	}
	if v.Why != "" {
		text += ": " + v.Why
	}

	return text
}

func versionCell(v *status.Version) string {
	switch {
	case v == nil:
		return "-"
	case v.Proved:
		return plain(v.Running)
	case v.OnTrial:
		return plain(v.Running) + " (on trial)"
	default:
		return plain(v.Running) + " (unproved)"
	}
}

func leaderCell(e status.Election) string {
	switch {
	case !e.Enabled:
		return "no election"
	case e.Leader:
		return "epoch " + strconv.FormatUint(e.Epoch, 10)
	default:
		return "standby"
	}
}

func gateCell(g status.Gate) string {
	if g.Open {
		return "open"
	}

	return "paused"
}

func helperCell(h status.Helper) string {
	name := strings.TrimSpace(plain(h.Name) + " " + plain(h.Build))
	if name == "" {
		name = "-"
	}
	if h.State != "running" {
		name += " (" + plain(h.State) + ")"
	}

	return name
}

// plain keeps what others say from moving the terminal's cursor, or the table's
// columns.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if strconv.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}
