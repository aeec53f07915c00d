package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/choria-provisioner/provisioner/internal/demo"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// The kinds of helper, and how the daemon connects.
const (
	plugin     = "plugin"
	execHelper = "exec"

	shared  = "shared"
	perCall = "per-call"
)

// way is what is compared: a kind of helper and a way to connect.
type way struct {
	Helper     string `json:"helper"`
	Connecting string `json:"connecting"`
	// Upgrades is on with a helper that names the version every node runs.
	Upgrades bool `json:"upgrades"`
}

func (w way) name() string {
	name := w.Helper + "-" + w.Connecting
	if w.Upgrades {
		name += "-upgrades"
	}

	return name
}

func ways() []way {
	return []way{
		{Helper: plugin, Connecting: shared}, {Helper: plugin, Connecting: perCall},
		{Helper: execHelper, Connecting: shared}, {Helper: execHelper, Connecting: perCall},
		{Helper: execHelper, Connecting: shared, Upgrades: true},
	}
}

func wayNames() []string {
	var names []string
	for _, w := range ways() {
		names = append(names, w.name())
	}

	return names
}

// connectionsInterval is well below the time in which the older way closes the
// 10,000 connections that the broker remembers.
const connectionsInterval = 5 * time.Second

// measure has a new fleet on a new broker provisioned by a new daemon.
func (b *bench) measure(ctx context.Context, w way) (r *result, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, b.timeout, fmt.Errorf("not done within %v (--timeout)", b.timeout))
	defer cancel()

	// A short name: sockets are in there, whose paths are limited.
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	broker, err := simfleet.StartBroker(ctx, simfleet.BrokerOptions{Dir: dir, Token: "bench"})
	if err != nil {
		return nil, fmt.Errorf("broker: %w", err)
	}
	defer func() { err = errors.Join(err, broker.Close()) }()
	fleet, err := simfleet.StartFleet(ctx, simfleet.FleetOptions{Broker: broker, Count: b.nodes})
	if err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	defer fleet.Close()

	d, err := b.startDaemon(w, dir, broker)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.stop()) }()

	opened, err := d.watch(ctx, broker, func(ctx context.Context) error { return fleet.WaitProvisioned(ctx, b.nodes) })
	took := time.Since(d.started)
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, d.log())
	}

	r = &result{way: w, Nodes: b.nodes, Workers: d.workers, Connections: opened}
	r.Seconds, r.NodesPerMinute = round(took.Seconds(), 100), round(float64(b.nodes)/took.Minutes(), 1)
	counts := fleet.Counts()
	r.Calls, r.Errors = counts.Calls, counts.Errors
	if r.Daemon, err = usageOf(d.pid()); err != nil {
		return nil, err
	}
	helper, err := childOf(d.pid())
	if err != nil {
		return nil, err
	}
	r.HelperProcess, err = usageOf(helper)

	return r, err
}

// helper is the daemon's helper key. The plugin is that of the demo, in the
// program as it ships whichever daemon is measured.
func (b *bench) helper(w way, dir string, broker *simfleet.Broker) (any, error) {
	if w.Helper == plugin {
		return map[string]any{
			"plugin": b.daemon,
			"args":   []string{demo.HelperCommand},
			"config": map[string]string{"broker": broker.Addr(), "ca": broker.CA(), "issuer": broker.IssuerPublic()},
		}, nil
	}

	script := filepath.Join(dir, "helper.sh")
	upgrade := ""
	if w.Upgrades {
		upgrade = fmt.Sprintf(`"upgrade": %q, `, simfleet.DefaultVersion)
	}
	text := fmt.Sprintf(helperScript, upgrade, broker.Addr(), broker.CA(), broker.IssuerPublic())

	return script, os.WriteFile(script, []byte(text), 0o700)
}

// helperScript answers as the plugin of the demo does. It starts no program of
// its own: one process a node is what is compared.
const helperScript = `#!/bin/sh
read -r node
identity=${node#*\"identity\":\"}
identity=${identity%%%%\"*}
directory=${node#*\"directory\":\"}
directory=${directory%%%%\"*}
echo '{%s"configuration": {
"collectives": "mcollective",
"main_collective": "mcollective",
"plugin.choria.server.provision": "false",
"plugin.choria.use_srv": "false",
"plugin.choria.middleware_hosts": "%s",
"plugin.security.provider": "choria",
"plugin.security.choria.ca": "%s",
"plugin.security.issuer.names": "choria",
"plugin.security.issuer.choria.public": "%s",
"plugin.security.choria.token_file": "'"$directory"'/server.jwt",
"plugin.security.choria.seed_file": "'"$directory"'/server.seed",
"identity": "'"$identity"'"
}}'
`
