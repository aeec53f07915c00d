package main

import (
	"encoding/json"
	"os"

	"github.com/choria-io/fisk"
	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/helper/helpertest"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// helperContract is the command "helper test".
type helperContract struct {
	helperUnderTest

	cli     *cli
	nodes   string
	json    bool
	verbose bool
}

func addHelperTest(c *cli, h *fisk.CmdClause) {
	test := &helperContract{cli: c}
	cmd := h.Command("test", "Holds a helper to the contract: a line for each check, exit code 1 if one fails").Action(test.run)
	test.addFlags(cmd)
	cmd.Flag("nodes", "File with nodes of the site, a JSON document on each line (docs/helpers.md)").PlaceHolder("FILE").StringVar(&test.nodes)
	cmd.Flag("json", "Print the report as JSON").UnNegatableBoolVar(&test.json)
	cmd.Flag("verbose", "Print what the helper logs, on standard error").UnNegatableBoolVar(&test.verbose)
}

func (h *helperContract) run(*fisk.ParseContext) error {
	site, err := h.site()
	if err != nil {
		return err
	}
	cfg := helpertest.Config{}
	if cfg.Supervisor, err = supervisorConfig(site); err != nil {
		return err
	}
	if cfg.Nodes, err = h.readNodes(); err != nil {
		return err
	}
	if h.verbose {
		log := logrus.New()
		log.SetOutput(h.cli.stderr)
		cfg.Supervisor.Log = log.WithField("component", "helper")
	}

	report := helpertest.Check(h.cli.ctx, cfg)
	if site.Plugin == "" {
		report.Path = site.CommandLine
	}
	if err := h.print(report); err != nil {
		return err
	}
	if report.Failed() {
		return silentError{}
	}

	return nil
}

func (h *helperContract) print(report *helpertest.Report) error {
	if !h.json {
		return report.WriteText(h.cli.stdout)
	}
	enc := json.NewEncoder(h.cli.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")

	return enc.Encode(report)
}

// readNodes reads the site's own nodes.
func (h *helperContract) readNodes() ([]*helperv1.Node, error) {
	if h.nodes == "" {
		return nil, nil
	}
	text, err := os.ReadFile(h.nodes)
	if err != nil {
		return nil, err
	}

	return parseNodes(h.nodes, text)
}
