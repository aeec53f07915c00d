package main

import (
	"encoding/json"
	"fmt"

	"github.com/choria-io/fisk"

	"github.com/choria-provisioner/provisioner/config"
)

// checkCommand judges a configuration file without running anything.
type checkCommand struct {
	cli    *cli
	config string
	strict bool
	json   bool
}

func addCheck(c *cli, app *fisk.Application) {
	cmd := &checkCommand{cli: c}

	check := app.Command("check", "Checks a configuration file: all errors and warnings, each with its line").Action(cmd.run)
	check.Flag("config", "The configuration file").PlaceHolder("FILE").Required().StringVar(&cmd.config)
	check.Flag("strict", "Treat warnings as errors").UnNegatableBoolVar(&cmd.strict)
	check.Flag("json", "Print the effective configuration, secrets masked; problems go to standard error").UnNegatableBoolVar(&cmd.json)
}

func (cmd *checkCommand) run(*fisk.ParseContext) error {
	cfg, problems, err := loadConfig(cmd.cli, cmd.config)
	if err != nil && len(problems) == 0 {
		return err
	}
	if cfg != nil {
		for _, p := range cfg.CheckReady() {
			// The file may be meant for another machine.
			p.Severity = config.Warning
			problems = append(problems, p)
		}
	}

	out := cmd.cli.stdout
	if cmd.json {
		out = cmd.cli.stderr
	}

	failed := false
	for _, p := range problems {
		if cmd.strict {
			p.Severity = config.Error
		}
		failed = failed || p.Severity == config.Error
		fmt.Fprintf(out, "%s: %s\n", p.Severity, p)
	}

	if cmd.json && cfg != nil {
		j, err := json.MarshalIndent(cfg, "", "  ")
		if err != nil {
			return fmt.Errorf("printing the configuration: %w", err)
		}
		fmt.Fprintln(cmd.cli.stdout, string(j))
	}
	if failed {
		return silentError{}
	}
	if !cmd.json && len(problems) == 0 {
		fmt.Fprintf(out, "%s: no problems\n", cmd.config)
	}

	return nil
}
