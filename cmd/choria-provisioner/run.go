package main

import (
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
	cfg, problems, err := config.Load(cmd.config)
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

	removePID, err := writePID(cmd.pidFile)
	if err != nil {
		return err
	}
	defer removePID()

	if cmd.choriaConfig == "" {
		cmd.choriaConfig = choria.UserConfig()
	}
	d, err := newDaemon(cfg, cmd.choriaConfig, logger)
	if err != nil {
		log.Errorf("Could not start: %v", err)
		return err
	}

	return d.Run(cmd.cli.ctx)
}

// writePID writes the process id to file and returns what removes it again. An
// empty file is none.
func writePID(file string) (remove func(), err error) {
	if file == "" {
		return func() {}, nil
	}
	file, err = filepath.Abs(file)
	if err != nil {
		return nil, fmt.Errorf("pid file: %w", err)
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
		return nil, fmt.Errorf("pid file: %w", err)
	}

	return func() { _ = os.Remove(file) }, nil
}
