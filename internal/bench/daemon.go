package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/choria-provisioner/provisioner/config"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// stopGrace is what the daemon has to end by itself.
const stopGrace = 10 * time.Second

// daemon is the provisioner as a child process.
type daemon struct {
	cmd     *exec.Cmd
	logFile string
	workers int
	started time.Time
	// ended is closed when it has ended; err then says how.
	ended chan struct{}
	err   error
}

// startDaemon starts the provisioner of w on the broker; its files lie in dir.
func (b *bench) startDaemon(w way, dir string, broker *simfleet.Broker) (*daemon, error) {
	program := b.daemon
	if w.Connecting == perCall {
		program = b.older
	}
	helper, err := b.helper(w, dir, broker)
	if err != nil {
		return nil, err
	}
	choriaConfig, err := broker.ProvisionerConfig("provisioner.example.net")
	if err != nil {
		return nil, err
	}
	text, err := yaml.Marshal(map[string]any{
		"workers":                      b.workers,
		"interval":                     "1m",
		"logfile":                      "stderr",
		"loglevel":                     "warn",
		"token":                        broker.Token(),
		"broker_provisioning_password": broker.Password(),
		"jwt_verify_cert":              broker.VerifyCert(),
		"jwt_signing_key":              broker.SigningKey(),
		"jwt_signing_token":            broker.SigningToken(),
		"state_dir":                    dir,
		"features":                     map[string]bool{"jwt": true, "ed25519": true, "upgrades": w.Upgrades},
		"upgrades_repository":          "http://127.0.0.1:1",
		"helper":                       helper,
	})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "provisioner.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	cfg, _, err := config.Load(file)
	if err != nil {
		return nil, err
	}

	d := &daemon{logFile: filepath.Join(dir, "provisioner.log"), workers: cfg.Workers, ended: make(chan struct{})}
	out, err := os.Create(d.logFile)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	d.cmd = exec.Command(program, "run", "--config", file, "--choria-config", choriaConfig)
	d.cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	d.cmd.Dir = dir
	d.cmd.Stdout, d.cmd.Stderr = out, out
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	d.started = time.Now()
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		d.err = d.cmd.Wait()
		close(d.ended)
	}()

	return d, nil
}

func (d *daemon) pid() int { return d.cmd.Process.Pid }

// watch returns how many connections the daemon had opened when done returned.
// The broker forgets old ones, so it is asked again and again.
func (d *daemon) watch(ctx context.Context, broker *simfleet.Broker, done func(context.Context) error) (opened int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	finished := make(chan error, 1)
	go func() { finished <- done(ctx) }()

	seen := map[uint64]bool{}
	look := func() error {
		conns, err := broker.Connections(ctx)
		for _, c := range conns {
			seen[c.ID] = true
		}
		return err
	}
	tick := time.NewTicker(connectionsInterval)
	defer tick.Stop()
	for {
		select {
		case err := <-finished:
			err = errors.Join(err, look())
			return len(seen), err
		case <-d.ended:
			return 0, fmt.Errorf("the provisioner ended by itself: %v", d.err)
		case <-tick.C:
			if err := look(); err != nil {
				return 0, err
			}
		}
	}
}

// stop ends the daemon and waits until it is gone.
func (d *daemon) stop() error {
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.ended:
		return nil
	case <-time.After(stopGrace):
		_ = syscall.Kill(-d.pid(), syscall.SIGKILL)
		<-d.ended
		return fmt.Errorf("the provisioner did not end within %v of SIGTERM", stopGrace)
	}
}

// log is what the daemon said.
func (d *daemon) log() string {
	text, err := os.ReadFile(d.logFile)
	if err != nil {
		return err.Error()
	}

	return string(text[max(0, len(text)-logBytes):])
}

// logBytes is how much of the log is shown when something failed.
const logBytes = 4 << 10
