package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/choria-io/fisk"
	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/config"
	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
	"github.com/choria-provisioner/provisioner/helper/supervisor"
	"github.com/choria-provisioner/provisioner/host"
	"github.com/choria-provisioner/provisioner/metrics"
	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/book"
)

// planCommand runs decisions about versions over stored nodes: it asks the
// helper and the guards as the daemon would, and does nothing else.
type planCommand struct {
	ledgerAccess
	helper helperUnderTest

	input    string
	exported string
	json     bool
}

func addPlan(c *cli, app *fisk.Application) {
	p := &planCommand{ledgerAccess: ledgerAccess{cli: c}}
	cmd := app.Command("plan", "Prints what would become of stored nodes' versions, and which guard says so; sends and writes nothing (docs/upgrades.md)").Action(p.run)
	cmd.Flag("input", "File with the nodes, a JSON document on each line (docs/helpers.md); --input=- is standard input").Required().StringVar(&p.input)
	cmd.Flag("config", "The daemon's configuration file: its helper, settings and ledger").PlaceHolder("FILE").StringVar(&p.config)
	cmd.Flag("helper", "Program of a plugin, instead of the configuration's helper").PlaceHolder("PATH").StringVar(&p.helper.path)
	cmd.Flag("arg", "An argument of that plugin; may be given again").StringsVar(&p.helper.args)
	cmd.Flag("helper-config", "File with that plugin's configuration, YAML or JSON").PlaceHolder("FILE").StringVar(&p.helper.config)
	cmd.Flag("exec", "Command line of an exec helper, instead of the configuration's helper").PlaceHolder("COMMAND").StringVar(&p.helper.exec)
	cmd.Flag("timeout", "Deadline of a call to a helper that is named here").Default("10s").DurationVar(&p.helper.timeout)
	cmd.Flag("mtls", "Protection of the connection to a plugin that is named here").Default("auto").EnumVar(&p.helper.mtls, "auto", "off")
	cmd.Flag("state-dir", "State directory with the ledger, instead of the configuration's").PlaceHolder("DIR").StringVar(&p.stateDir)
	cmd.Flag("ledger", "What ledger export printed, instead of a ledger").PlaceHolder("FILE").StringVar(&p.exported)
	cmd.Flag("json", "Print a JSON document for each node").UnNegatableBoolVar(&p.json)
}

func (p *planCommand) run(*fisk.ParseContext) error {
	cfg, err := p.site()
	if err != nil {
		return err
	}
	nodes, err := p.readNodes()
	if err != nil {
		return err
	}
	past, err := p.remembered(cfg, nodes)
	if err != nil {
		return err
	}

	log := logrus.New()
	log.SetOutput(p.cli.stderr)
	log.SetLevel(logrus.WarnLevel)
	sup, err := newHelper(cfg.Helper, metrics.New("").Helper(), log.WithField("component", "helper"))
	if err != nil {
		return err
	}
	defer sup.Close()
	if err := sup.Start(p.cli.ctx); err != nil {
		return err
	}

	return p.print(&planner{past: past, helper: sup, cfg: cfg}, nodes)
}

// site is the configuration; without a file, one that has upgrades on.
func (p *planCommand) site() (*config.Config, error) {
	cfg := &config.Config{
		Features: config.Features{Upgrades: true},
		// The guards want to know that there is one, and nothing is fetched.
		UpgradesRepository: "https://repository.example.net",
		Versions:           config.Versions{Trial: 10 * time.Minute, ReleaseTimeout: 10 * time.Minute},
	}
	if p.config != "" {
		var err error
		if cfg, _, err = loadConfig(p.cli, p.config); err != nil {
			return nil, err
		}
	}
	if p.helper.path == "" && p.helper.exec == "" {
		if cfg.Helper.Plugin == "" && len(cfg.Helper.Command) == 0 {
			return nil, errors.New("name a helper: --config of a daemon that has one, --helper PATH or --exec COMMAND")
		}
		return cfg, nil
	}
	var err error
	cfg.Helper, err = p.helper.site()

	return cfg, err
}

func (p *planCommand) readNodes() ([]*helperv1.Node, error) {
	text, err := await(p.cli.ctx, func() ([]byte, error) {
		if p.input == "-" {
			return io.ReadAll(p.cli.stdin)
		}
		return os.ReadFile(p.input)
	})
	if err != nil {
		return nil, err
	}

	return parseNodes(p.input, text)
}

// parseNodes reads a node on each line. What the inventory shows need not be
// said twice.
func parseNodes(name string, text []byte) ([]*helperv1.Node, error) {
	var nodes []*helperv1.Node
	number := 0
	for line := range bytes.Lines(text) {
		number++
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		node, err := parseNode(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, number, err)
		}
		var shown struct {
			Version    string `json:"version"`
			Upgradable bool   `json:"upgradable"`
		}
		if json.Unmarshal(node.GetInventoryJson(), &shown) == nil {
			node.Version = cmp.Or(node.GetVersion(), shown.Version)
			node.Upgradable = node.GetUpgradable() || shown.Upgradable
		}
		nodes = append(nodes, node)
	}

	return nodes, nil
}

// past is what is remembered when the plan begins, and what the plan adds.
type past struct {
	records map[string]ledger.Record
	index   *ledger.Index
	env     ledger.Env
}

// remembered reads the ledger: all of it into the statistics, the records of the
// nodes whole.
func (p *planCommand) remembered(cfg *config.Config, nodes []*helperv1.Node) (*past, error) {
	mainView := cfg.Insecure || len(cfg.State.NATS.Servers) > 0
	past := &past{
		records: map[string]ledger.Record{},
		index:   ledger.NewIndex(cfg.Versions.QuarantineAfter),
		env:     ledger.Env{Wall: time.Now(), Epoch: 1, Policy: policy(cfg, mainView)},
	}
	past.env.Fleet = past.index
	wanted := map[string]bool{}
	for _, n := range nodes {
		wanted[n.GetIdentity()] = true
	}

	switch {
	case p.exported != "":
		return past, past.readExport(p.exported, wanted)
	case p.stateDir == "" && p.config == "":
		return past, nil
	}
	err := p.use(func(b book.Book, _ io.Writer) error { return past.readBook(p.cli.ctx, b, wanted, p.warnSetAside) })
	if errors.Is(err, book.ErrNoLedger) && p.stateDir == "" {
		fmt.Fprintf(p.cli.stderr, "Nothing is remembered of any node: %v\n", err)
		err = nil
	}

	return past, err
}

func (p *past) readBook(ctx context.Context, b book.Book, wanted map[string]bool, unread func(string, error)) error {
	standing, err := b.Standing(ctx)
	if err != nil {
		return err
	}
	p.env.Observed = standing.Observed
	for rec, err := range b.List(ctx, book.Query{}) {
		switch {
		case errors.Is(err, ledger.ErrCorrupt):
			unread(rec.Identity, err)
		case err != nil:
			return err
		default:
			p.add(rec, wanted)
		}
	}
	p.env.Epoch = max(p.env.Epoch, standing.Epoch)

	return nil
}

func (p *past) readExport(file string, wanted map[string]bool) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	lines, err := book.ReadExport(data)
	if err != nil {
		return fmt.Errorf("%s:\n%w", file, err)
	}
	for _, line := range lines {
		p.env.Observed = max(p.env.Observed, line.Observed)
		p.add(line.Record, wanted)
	}

	return nil
}

func (p *past) add(rec ledger.Record, wanted map[string]bool) {
	p.index.Put(rec)
	p.env.Epoch = max(p.env.Epoch, rec.Epoch)
	if wanted[rec.Identity] {
		p.records[rec.Identity] = rec
	}
}

// record is that of a node, as far as the plan has come.
func (p *past) record(identity string) ledger.Record {
	rec, known := p.records[identity]
	if !known {
		return ledger.New(identity)
	}

	return rec
}

// step applies an event to what the plan remembers; the nodes that follow find
// its budgets used.
func (p *past) step(identity string, ev ledger.Event) (ledger.Result, error) {
	result, err := ledger.Step(p.record(identity), ev, p.env)
	if err == nil && result.Changed {
		p.records[identity] = result.Record
		p.index.Put(result.Record)
	}

	return result, err
}

// plan is what becomes of one node.
type plan struct {
	Identity string `json:"identity"`
	Version  string `json:"version"`
	// Decision is the helper's: keep, upgrade, rollback, defer or shutdown; empty
	// when it is not asked.
	Decision string `json:"decision,omitempty"`
	Target   string `json:"target,omitempty"`
	Outcome  string `json:"outcome"`
	// Guard is the one that stopped the decision, or "allowed".
	Guard string `json:"guard,omitempty"`
	Why   string `json:"why,omitempty"`
}

// The outcomes of a plan.
const (
	planSend      = "send"      // release_update leaves
	planProvision = "provision" // the node is configured at its version
	planDefer     = "defer"     // nothing is sent, it is asked again next cycle
	planLeave     = "leave"     // it may be updating itself and is left alone
	planShutdown  = "shutdown"  // its server is told to exit
	planError     = "error"     // the helper gave no usable answer
)

func planned(n ledger.Next) string {
	switch n {
	case ledger.NextSend:
		return planSend
	case ledger.NextDefer:
		return planDefer
	case ledger.NextLeave:
		return planLeave
	default:
		return planProvision
	}
}

// planner plans one node after the other, in the daemon's order of steps.
type planner struct {
	past   *past
	helper *supervisor.Supervisor
	cfg    *config.Config
	asked  int
}

func (p *planner) plan(ctx context.Context, node *helperv1.Node) (plan, error) {
	pl := plan{Identity: node.GetIdentity(), Version: node.GetVersion()}
	shown, err := p.past.step(pl.Identity, ledger.Inventory{Version: pl.Version, LockFree: true})
	if err != nil {
		return plan{}, err
	}
	if shown.Next != ledger.NextContinue {
		pl.Outcome, pl.Why = planned(shown.Next), book.Advise(shown.Record, book.Standing{Live: true, Observed: p.past.env.Observed, Policy: p.past.env.Policy}).Now
		if shown.Record.Trial != nil {
			pl.Target = shown.Record.Trial.Version
		}
		return pl, nil
	}

	d, err := p.ask(ctx, node, &pl)
	if err != nil || pl.Outcome != "" {
		return pl, err
	}
	d.Current, d.Upgradable = pl.Version, node.GetUpgradable()
	p.asked++
	d.AttemptID = fmt.Sprintf("plan-%d", p.asked)
	pl.Decision = cmp.Or(string(d.Direction), "keep")

	result, err := p.past.step(pl.Identity, d)
	if err != nil {
		return plan{}, err
	}
	ruling := result.Ruling
	pl.Outcome, pl.Target = planned(result.Next), ruling.Target
	switch {
	case d.Direction == "":
		pl.Why = d.Reason
	case ruling.Allowed:
		pl.Guard, pl.Why = "allowed", d.Reason
	default:
		pl.Guard, pl.Why = string(ruling.Guard), ruling.Sentence
	}

	return pl, nil
}

// ask asks the helper. It fills the plan where the answer ends the matter.
func (p *planner) ask(ctx context.Context, node *helperv1.Node, pl *plan) (ledger.Decision, error) {
	fail := func(err error) (ledger.Decision, error) {
		pl.Outcome, pl.Why = planError, err.Error()
		// Only the end of the command is the end of the plan.
		return ledger.Decision{}, ctx.Err()
	}
	if !p.helper.Info().Has(helperv1.Capability_CAPABILITY_DECIDE_RELEASE) {
		answer, err := p.helper.ConfigureNode(ctx, &helperv1.ConfigureNodeRequest{RequestId: rand.Text(), Node: node, Context: p.context(node)})
		if err == nil {
			err = helper.CheckAnswer(answer)
		}
		if err != nil {
			return fail(err)
		}
		pl.end(answer.GetDefer(), answer.GetShutdown())
		c := answer.GetConfigure()
		if c.GetVersion() == "" {
			return ledger.Decision{Reason: c.GetReason()}, nil
		}
		d := ledger.Wish(pl.Version, c.GetVersion())
		d.Reason = c.GetReason()

		return d, nil
	}

	answer, err := p.helper.DecideRelease(ctx, &helperv1.DecideReleaseRequest{
		RequestId: rand.Text(), Node: node, Context: p.context(node),
		Record:     host.ReleaseRecord(p.past.record(pl.Identity)),
		Candidates: host.Candidates(p.past.index.Candidates()),
	})
	if err != nil {
		return fail(err)
	}
	if pl.end(answer.GetDefer(), answer.GetShutdown()) {
		return ledger.Decision{}, nil
	}
	d, err := host.ReleaseDecision(answer)
	if err != nil {
		return fail(err)
	}

	return d, nil
}

// context says which features are on: those of which the node has something, for
// a helper is promised that of each that is on.
func (p *planner) context(node *helperv1.Node) *helperv1.Context {
	c := contextOf(node)
	c.Site, c.FeatureUpgrades = p.cfg.Site, p.cfg.Features.Upgrades

	return c
}

// end fills the plan of a node that the helper defers or shuts down.
func (pl *plan) end(d *helperv1.Defer, s *helperv1.Shutdown) bool {
	switch {
	case d != nil:
		pl.Decision, pl.Outcome, pl.Why = "defer", planDefer, d.GetReason()
	case s != nil:
		pl.Decision, pl.Outcome, pl.Why = "shutdown", planShutdown, s.GetReason()
	}

	return pl.Outcome != ""
}

// print plans all nodes and prints each.
func (p *planCommand) print(pl *planner, nodes []*helperv1.Node) error {
	out := bufio.NewWriter(p.cli.stdout)
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	t := newTable(out, "IDENTITY", "VERSION", "DECISION", "TARGET", "OUTCOME", "GUARD", "WHY")
	count := map[string]int{}
	for _, node := range nodes {
		planned, err := pl.plan(p.cli.ctx, node)
		if err != nil {
			return fmt.Errorf("%s: %w", node.GetIdentity(), err)
		}
		count[planned.Outcome]++
		if p.json {
			err = lines.Encode(planned)
		} else {
			err = t.row(planned.Identity, planned.Version, planned.Decision, planned.Target, planned.Outcome, planned.Guard, planned.Why)
		}
		if err != nil {
			return err
		}
	}
	if err := errors.Join(t.flush(), out.Flush()); err != nil {
		return err
	}

	var parts []string
	for _, outcome := range slices.Sorted(maps.Keys(count)) {
		parts = append(parts, fmt.Sprintf("%d %s", count[outcome], outcome))
	}
	fmt.Fprintf(p.cli.stderr, "%d nodes: %s\n", len(nodes), strings.Join(parts, ", "))
	if count[planError] > 0 {
		return silentError{}
	}

	return nil
}
