package main

import (
	"fmt"
	"os"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/config"
	"github.com/choria-provisioner/provisioner/helper/supervisor"
	"github.com/choria-provisioner/provisioner/metrics"
)

// newHelper returns the supervisor of the site's helper.
func newHelper(h config.Helper, m *metrics.Helper, log *logrus.Entry) (*supervisor.Supervisor, error) {
	cfg, err := supervisorConfig(h)
	if err != nil {
		return nil, err
	}
	cfg.Log, cfg.Metrics = log, helperMetrics{m}

	return supervisor.New(cfg)
}

// supervisorConfig says how the site's helper is started: the plugin, or this
// program itself as the adapter of an exec helper.
func supervisorConfig(h config.Helper) (supervisor.Config, error) {
	cfg := supervisor.Config{
		Timeout:      h.Timeout,
		StartTimeout: h.StartTimeout,
		MaxInFlight:  h.MaxInFlight,
		MTLS:         h.MTLS,
		HostVersion:  version,
	}
	if h.Plugin != "" {
		cfg.Path, cfg.Args, cfg.SHA256, cfg.Env, cfg.PluginConfig = h.Plugin, h.Args, h.SHA256, h.Env, h.Config
		return cfg, nil
	}

	self, err := ownProgram()
	if err != nil {
		return cfg, fmt.Errorf("could not find our own program for the exec helper: %w", err)
	}
	cfg.Path, cfg.Name = self, h.Command[0]
	cfg.Args = append([]string{"exec-helper", "--timeout", h.Timeout.String(), "--"}, h.Command...)
	cfg.InheritEnv = true
	cfg.AllowRawClaims = true
	// The adapter ends the script at the deadline and says so; its answer must
	// still arrive.
	cfg.Timeout += execGrace

	return cfg, nil
}

// execGrace is what the adapter has, beyond the script's deadline, to answer.
const execGrace = 2 * time.Second

// ownProgram is a path that runs this very program, also after its file was
// replaced or removed.
func ownProgram() (string, error) {
	const self = "/proc/self/exe"
	if _, err := os.Stat(self); err == nil {
		return self, nil
	}

	return os.Executable()
}
