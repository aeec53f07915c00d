// Command choriaserver is a real Choria server for tests: go-choria's own
// server with its own provision, rpcutil and discovery agents.
//
// It starts as the server of a packaged Choria does. Without its configuration
// file it waits in provisioning mode on the brokers that the provisioning token
// names; once the file is there it is an ordinary server. The provision agent
// writes the file and replaces the process by executing os.Args[0] again, so
// the program must be started by its absolute path. It can update itself: the
// same agent replaces that file by another release, which a test makes by
// linking the program with another version or by appending a trailer.
//
// go-choria keeps its build settings, its agents and protocol.Secure in package
// variables: there is one server in a process.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/choria-io/go-choria/build"
	"github.com/choria-io/go-choria/choria"
	"github.com/choria-io/go-choria/config"
	"github.com/choria-io/go-choria/inter"
	"github.com/choria-io/go-choria/providers/agent/mcorpc/golang/discovery"
	"github.com/choria-io/go-choria/providers/agent/mcorpc/golang/provision"
	"github.com/choria-io/go-choria/providers/agent/mcorpc/golang/rpcutil"
	"github.com/choria-io/go-choria/server"
	"github.com/choria-io/go-choria/server/agents"
	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/internal/choriaserver/trailer"
)

// settings are the flags of the program.
type settings struct {
	// config is the configuration file, which the provision agent writes.
	config string
	// token is the provisioning token (provisioning.jwt).
	token string
	// identity is what the server calls itself while it waits; afterwards it is
	// what its configuration file says.
	identity string
	// facts is a JSON file; empty is no facts.
	facts string
}

func main() {
	var s settings
	flag.StringVar(&s.config, "config", "", "configuration `file`, absolute; absent before the server is provisioned")
	flag.StringVar(&s.token, "token", "", "provisioning token `file`, absolute")
	flag.StringVar(&s.identity, "identity", "", "identity while waiting to be provisioned")
	flag.StringVar(&s.facts, "facts", "", "JSON `file` with the facts while waiting to be provisioned")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	err := run(ctx, s)
	if err != nil {
		fmt.Fprintf(os.Stderr, "choriaserver: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) error {
	for name, path := range map[string]string{"the program": os.Args[0], "--config": s.config, "--token": s.token} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("%s must be an absolute path, not %q", name, path)
		}
	}

	release, err := trailer.Read(os.Args[0])
	if err != nil {
		return err
	}
	if release.Version != "" {
		build.Version = release.Version
	}
	build.ProvisionJWTFile = s.token
	build.ProvisionFacts = s.facts

	cfg, err := loadConfig(s, release.Fault)
	if err != nil {
		return err
	}
	cfg.CustomLogger = logrus.New()
	cfg.CustomLogger.SetLevel(logrus.InfoLevel)

	fw, err := choria.NewWithConfig(cfg)
	if err != nil {
		return fmt.Errorf("starting with %s: %w", s.config, err)
	}
	fw.ConfigureProvisioning(ctx)

	instance, err := server.NewInstance(fw)
	if err != nil {
		return fmt.Errorf("creating the server: %w", err)
	}
	server.RegisterAdditionalAgent(registerAgents)

	// the pid is the same before and after the server was provisioned, the log
	// is where a reader sees the difference
	cfg.CustomLogger.WithFields(logrus.Fields{
		"identity":     cfg.Identity,
		"pid":          os.Getpid(),
		"provisioning": fw.ProvisionMode(),
		"version":      build.Version,
		"collectives":  cfg.Collectives,
	}).Warn("Starting Choria server")

	var wg sync.WaitGroup
	wg.Add(1)
	err = instance.Run(ctx, &wg)
	if err != nil {
		return err
	}
	wg.Wait()

	return nil
}

// loadConfig reads the configuration file; when there is none it is that of a
// server that waits to be provisioned. A fault is that of the release.
func loadConfig(s settings, fault trailer.Fault) (*config.Config, error) {
	if fault == trailer.CrashAtStart {
		return nil, fmt.Errorf("this release crashes: %s", fault)
	}

	_, err := os.Stat(s.config)
	if err == nil && fault == trailer.LoseConfiguration {
		if err := os.Remove(s.config); err != nil {
			return nil, err
		}
		err = os.ErrNotExist
	}
	switch {
	case err == nil && fault == trailer.CrashOnceConfigured:
		return nil, fmt.Errorf("this release crashes: %s", fault)

	case err == nil:
		cfg, err := config.NewSystemConfig(s.config, true)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", s.config, err)
		}
		return cfg, nil

	case !errors.Is(err, os.ErrNotExist):
		return nil, err
	}

	cfg, err := config.NewDefaultSystemConfig(true)
	if err != nil {
		return nil, fmt.Errorf("default configuration: %w", err)
	}
	cfg.ConfigFile = s.config
	if fault == trailer.RefuseConfiguration {
		cfg.ConfigFile = ""
	}
	cfg.Identity = s.identity
	// there are no certificates yet; ConfigureProvisioning sets the rest
	cfg.Choria.SecurityProvider = "file"
	cfg.DisableSecurityProviderVerify = true

	return cfg, nil
}

// registerAgents adds the agents that a waiting server may offer.
func registerAgents(ctx context.Context, mgr *agents.Manager, conn inter.AgentConnector, _ *logrus.Entry) error {
	for name, create := range map[string]func(server.AgentManager) (agents.Agent, error){
		"discovery":        func(m server.AgentManager) (agents.Agent, error) { return discovery.New(m) },
		"rpcutil":          func(m server.AgentManager) (agents.Agent, error) { return rpcutil.New(m) },
		"choria_provision": provision.New,
	} {
		agent, err := create(mgr)
		if err != nil {
			return fmt.Errorf("creating agent %s: %w", name, err)
		}
		err = mgr.RegisterAgent(ctx, name, agent, conn)
		if err != nil {
			return fmt.Errorf("registering agent %s: %w", name, err)
		}
	}

	return nil
}
