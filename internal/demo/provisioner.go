package demo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/choria-provisioner/provisioner/config"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

const (
	loopback = "127.0.0.1"

	// stopGrace is what the provisioner has to end by itself; it wants 2 seconds
	// at most, on a machine that is not busy.
	stopGrace = 5 * time.Second

	// logEnd is how many lines of the log are shown when something failed, and
	// logBytes the most that is read for it.
	logEnd   = 12
	logBytes = 64 << 10
)

// provisioner is the daemon, this program as a child process.
type provisioner struct {
	pid        int
	workers    int
	metricsURL string
	logFile    string

	process *os.Process
	// started is when it was started.
	started time.Time
	// ended is closed when it has ended; err then says how.
	ended chan struct{}
	err   error

	// sample is what its metrics said last.
	sample sample
}

// startProvisioner starts the daemon on the broker, with this program as its
// helper. Its files lie in dir.
func startProvisioner(dir string, broker *simfleet.Broker, opts Options) (*provisioner, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("could not find our own program: %w", err)
	}
	choriaConfig, err := broker.ProvisionerConfig("provisioner.example.net")
	if err != nil {
		return nil, err
	}
	// Not before the nodes are connected, whose ports come from the same range.
	port, err := monitorPort(opts.MonitorPort)
	if err != nil {
		return nil, err
	}

	// Who keeps the log wants to read of each node in it.
	logFile, logLevel := opts.LogFile, "info"
	if logFile == "" {
		logFile, logLevel = filepath.Join(dir, "provisioner.log"), "warn"
	}

	features := map[string]bool{}
	for _, name := range opts.features() {
		features[name] = true
	}

	helper := helperConfig{Broker: broker.Addr(), CA: broker.CA(), Issuer: broker.IssuerPublic()}
	repository := ""
	if features[upgrades] {
		// Simulated nodes only say that they fetch something.
		helper.Target, repository = newRelease, "http://"+loopback
	}

	file := filepath.Join(dir, "provisioner.yaml")
	cfg, err := writeConfig(file, map[string]any{
		"workers":                      opts.Workers,
		"interval":                     "1m",
		"logfile":                      "stderr",
		"loglevel":                     logLevel,
		"token":                        broker.Token(),
		"site":                         "demo",
		"monitor_port":                 port,
		"monitor_address":              loopback,
		"broker_provisioning_password": broker.Password(),
		"jwt_verify_cert":              broker.VerifyCert(),
		"jwt_signing_key":              broker.SigningKey(),
		"jwt_signing_token":            broker.SigningToken(),
		"state_dir":                    dir,
		"upgrades_repository":          repository,
		"features":                     features,
		"helper": map[string]any{
			"plugin": self,
			"args":   []string{HelperCommand},
			"config": helper,
		},
	})
	if err != nil {
		return nil, err
	}

	p := &provisioner{
		workers:    cfg.Workers,
		metricsURL: fmt.Sprintf("http://%s:%d/metrics", loopback, port),
		logFile:    logFile,
		ended:      make(chan struct{}),
	}

	cmd := exec.Command(self, "run", "--config", file, "--choria-config", choriaConfig, "--pid", filepath.Join(dir, "provisioner.pid"))
	// the helper's socket goes with everything else, and no configuration of the
	// working directory is mixed in
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	cmd.Dir = dir
	cmd.SysProcAttr = procAttr()

	return p, p.start(cmd)
}

// start starts the process, its output going to the log file.
func (p *provisioner) start(cmd *exec.Cmd) error {
	out, err := os.OpenFile(p.logFile, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	// the child has its own
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out

	started := make(chan error, 1)
	p.started = time.Now()
	go func() {
		// the kernel ends the process with the thread that started it
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()

		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			if p.err == nil {
				p.err = errors.New("exit status 0")
			}
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	p.process, p.pid = cmd.Process, cmd.Process.Pid

	return nil
}

// stop ends the process and waits until it is gone. Its helper goes with it.
func (p *provisioner) stop() {
	if p.process.Signal(syscall.SIGTERM) != nil {
		// it has ended
		<-p.ended
		return
	}

	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	select {
	case <-p.ended:
	case <-grace.C:
		_ = syscall.Kill(-p.pid, syscall.SIGKILL)
		<-p.ended
	}
}

// scrape reads the metrics. The last sample stays where they cannot be read:
// before the daemon listens, and after it has ended.
func (p *provisioner) scrape(ctx context.Context) {
	if s, err := scrape(ctx, p.metricsURL); err == nil {
		p.sample = s
	}
}

// lastLines are the last lines of the log.
func (p *provisioner) lastLines() []string {
	f, err := os.Open(p.logFile)
	if err != nil {
		return []string{err.Error()}
	}
	defer f.Close()

	var size int64
	if info, err := f.Stat(); err == nil {
		size = info.Size()
	}
	text := make([]byte, min(size, logBytes))
	if _, err := f.ReadAt(text, size-int64(len(text))); err != nil {
		return []string{err.Error()}
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")

	return lines[max(0, len(lines)-logEnd):]
}

// writeConfig writes the daemon's configuration and returns it as the daemon
// will read it.
func writeConfig(file string, keys map[string]any) (*config.Config, error) {
	text, err := yaml.Marshal(keys)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	cfg, _, err := config.Load(file)

	return cfg, err
}

// monitorPort is wanted, or any free port for 0. A port in use is an error.
func monitorPort(wanted int) (int, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(wanted)))
	switch {
	case err != nil && wanted != 0 && errors.Is(err, syscall.EADDRINUSE):
		return 0, fmt.Errorf("port %d is in use: choose another --monitor-port, or none for any that is free", wanted)
	case err != nil && errors.Is(err, fs.ErrPermission):
		return 0, fmt.Errorf("port %d is not for this user: choose another --monitor-port, or none for any that is free", wanted)
	case err != nil:
		return 0, fmt.Errorf("monitor port: %w", err)
	}

	return l.Addr().(*net.TCPAddr).Port, l.Close()
}
