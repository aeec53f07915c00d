package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/choria-io/fisk"
	"github.com/choria-io/go-choria/choria"
	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/config"
)

// runCommand is the daemon's command line.
type runCommand struct {
	cli          *cli
	config       string
	choriaConfig string
	pidFile      string
	debug        bool
}

func addRun(c *cli, app *fisk.Application) {
	cmd := &runCommand{cli: c}

	run := app.Command("run", "Runs the provisioner").Default().Action(cmd.run)
	run.Flag("config", "The provisioner's configuration file").PlaceHolder("FILE").Required().StringVar(&cmd.config)
	run.Flag("choria-config", "The Choria client configuration file, else that of the user").PlaceHolder("FILE").StringVar(&cmd.choriaConfig)
	run.Flag("pid", "Write the process id to this file").PlaceHolder("FILE").StringVar(&cmd.pidFile)
	run.Flag("debug", "Log at level debug").UnNegatableBoolVar(&cmd.debug)
}

func (cmd *runCommand) run(*fisk.ParseContext) error {
	cfg, problems, err := loadConfig(cmd.cli, cmd.config)
	if err != nil {
		return err
	}
	if err := cfg.CheckReady().Err(); err != nil {
		return err
	}
	if cmd.debug {
		cfg.LogLevel = logrus.DebugLevel.String()
	}

	logger, closeLog, err := newLogger(cfg.LogFile, cfg.LogLevel, cmd.cli.stdout, cmd.cli.stderr)
	if err != nil {
		return err
	}
	defer closeLog()
	log := logger.WithField("component", "provisioner")
	for _, p := range problems.Warnings() {
		log.Warn(p.String())
	}

	if err := cmd.serve(cfg, logger); err != nil {
		log.Errorf("Could not start: %v", err)
		if cfg.LogFile == "" || cfg.LogFile == "stderr" {
			return silentError{}
		}
		return err
	}

	return nil
}

// serve runs the daemon until a signal. An error is one of the start.
func (cmd *runCommand) serve(cfg *config.Config, logger *logrus.Logger) error {
	if cmd.choriaConfig == "" {
		cmd.choriaConfig = choria.UserConfig()
	}
	d, err := newDaemon(cmd.cli.ctx, cfg, cmd.choriaConfig, logger)
	switch {
	case cmd.cli.ctx.Err() != nil && errors.Is(err, context.Canceled):
		// A large ledger was being read.
		return nil
	case err != nil:
		return err
	}
	defer d.closeLedger()
	if err := d.Listen(); err != nil {
		return err
	}
	// Not before the port is ours: a second start by mistake ends there.
	removePID, err := writePID(cmd.pidFile)
	if err != nil {
		return err
	}
	defer removePID()

	return d.Run(cmd.cli.ctx)
}

// loadConfig is config.Load that ends with a signal.
func loadConfig(c *cli, file string) (*config.Config, config.Problems, error) {
	var problems config.Problems
	cfg, err := await(c.ctx, func() (cfg *config.Config, err error) {
		cfg, problems, err = config.Load(file)
		return cfg, err
	})
	if c.ctx.Err() != nil {
		return nil, nil, err // Load goes on and may still set problems
	}

	return cfg, problems, err
}

// writePID writes the process id to file and returns what removes it again, if
// it still holds that id. An empty file is none.
func writePID(file string) (remove func(), err error) {
	if file == "" {
		return func() {}, nil
	}
	file, err = filepath.Abs(file)
	if err != nil {
		return nil, fmt.Errorf("pid file: %w", err)
	}
	pid := []byte(strconv.Itoa(os.Getpid()))
	if err := os.WriteFile(file, pid, 0o644); err != nil {
		return nil, fmt.Errorf("pid file: %w", err)
	}

	return func() {
		if data, err := os.ReadFile(file); err == nil && bytes.Equal(data, pid) {
			_ = os.Remove(file)
		}
	}, nil
}
