package main

import (
	"bytes"
	"fmt"
	"os"

	"github.com/choria-io/go-choria/choria"
	chconfig "github.com/choria-io/go-choria/config"
	"github.com/choria-io/go-choria/protocol"
	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/config"
)

// provisioningCollective is the only collective of nodes that wait.
const provisioningCollective = "provisioning"

// provisionerUser is the user a broker lets into its provisioning account
// (go-choria, broker/network, provisioningUser).
const provisionerUser = "provisioner"

// newMainFramework returns the framework for the account of the nodes that are
// provisioned: that of the same configuration file, with the servers and
// credentials of state.nats.
func newMainFramework(cfg *config.Config, file string, logger *logrus.Logger) (*choria.Framework, error) {
	c, err := chconfig.NewConfig(file)
	if err != nil {
		return nil, fmt.Errorf("choria configuration %s: %w", file, err)
	}
	nats := cfg.State.NATS
	c.ApplyBuildSettings(choria.BuildInfo())
	c.CustomLogger = logger
	c.Choria.MiddlewareHosts = nats.Servers
	c.Choria.NatsUser, c.Choria.NatsPass = "", ""
	if nats.TokenFile != "" {
		c.Choria.SecurityProvider = "choria"
		c.Choria.ChoriaSecurityTokenFile, c.Choria.ChoriaSecuritySeedFile = nats.TokenFile, nats.SeedFile
	}

	fw, err := choria.NewWithConfig(c)
	if err != nil {
		return nil, fmt.Errorf("choria configuration %s with state.nats: %w", file, err)
	}

	return fw, nil
}

// newFramework returns the go-choria framework for a client configuration file,
// bent to the provisioning account.
func newFramework(cfg *config.Config, file string, logger *logrus.Logger) (*choria.Framework, error) {
	// go-choria makes the name of the caller from it, and containers and service
	// managers often set none.
	if os.Getenv("USER") == "" {
		if err := os.Setenv("USER", provisionerUser); err != nil {
			return nil, err
		}
	}

	password, err := cfg.ReadBrokerPassword()
	if err != nil {
		return nil, err
	}
	// go-choria takes any of these for an empty configuration, and then looks for
	// Puppet to complete it.
	switch data, err := os.ReadFile(file); {
	case err != nil:
		return nil, fmt.Errorf("choria configuration: %w", err)
	case !bytes.Contains(data, []byte("=")):
		return nil, fmt.Errorf("choria configuration %s holds no setting", file)
	}
	c, err := chconfig.NewConfig(file)
	if err != nil {
		return nil, fmt.Errorf("choria configuration %s: %w", file, err)
	}
	c.ApplyBuildSettings(choria.BuildInfo())
	c.CustomLogger = logger
	c.Collectives = []string{provisioningCollective}
	c.MainCollective = provisioningCollective
	c.Choria.FederationCollectives = nil
	if password != "" {
		c.Choria.NatsUser, c.Choria.NatsPass = provisionerUser, password
	}
	if cfg.Insecure {
		protocol.Secure = "false"
		c.Choria.SecurityProvider = "file"
		c.DisableTLS = true
		c.DisableSecurityProviderVerify = true
	}

	fw, err := choria.NewWithConfig(c)
	if err != nil {
		return nil, fmt.Errorf("choria configuration %s: %w", file, err)
	}

	return fw, nil
}
