//go:build linux

package ownversions

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
	"github.com/choria-provisioner/provisioner/status"
)

// What a person sees of daemons that no launcher started, two of them with one
// identity, of none, and without a broker.
func TestStatus(t *testing.T) {
	t.Parallel()
	bin, broker := build(t), harness.StartBroker(t, simfleet.Insecure)
	m := newMachine(t, bin, broker, "provisioner.example.net", insecure(bin, broker))

	_, err := m.command("status", "--config", m.config, "--choria-config", m.choriaConfig)
	if err == nil || !strings.Contains(err.Error(), "exit status 1: choria-provisioner: no provisioner answers") {
		t.Errorf("without a daemon: %v", err)
	}

	for _, name := range []string{"first", "second"} {
		harness.StartDaemon(t, bin.Binaries, harness.DaemonOptions{Name: name, ChoriaConfig: m.choriaConfig, Config: insecure(bin, broker)})
	}
	var list []status.Status
	harness.Eventually(t, limit, "two instances", func() (err error) {
		if list, err = m.status(); err == nil && len(list) != 2 {
			err = fmt.Errorf("%d answer", len(list))
		}
		return err
	})
	for _, s := range list {
		if s.Version != nil || s.Election.Enabled || !s.Gate.Open || s.Helper.Name != "sitehelper" || s.Ledger != "off" || len(s.Digest) != 64 {
			t.Errorf("%+v", s)
		}
	}
	table, err := m.command("status", "--config", m.config, "--choria-config", m.choriaConfig)
	if err != nil || strings.Count(table, "\nprovisioner.example.net ") != 2 {
		t.Errorf("%v: %s", err, table)
	}

	// As the nats client asks.
	nc, err := nats.Connect(broker.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	reply, err := nc.Request("$SRV.INFO.choria_provisioner", nil, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var info micro.Info
	if err := json.Unmarshal(reply.Data, &info); err != nil || len(info.Endpoints) != 2 {
		t.Errorf("%v: %s", err, reply.Data)
	}

	watch := exec.Command(bin.first, "status", "--config", m.config, "--choria-config", m.choriaConfig, "--json", "--watch", "--every", "100ms")
	watch.Env = []string{"PATH=" + os.Getenv("PATH")}
	out, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for range 3 {
		if !lines.Scan() {
			t.Fatal("--watch ended")
		}
		if err := json.Unmarshal(lines.Bytes(), &list); err != nil || len(list) != 2 {
			t.Errorf("%v: %s", err, lines.Text())
		}
	}
	if err := watch.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, out)
	if err := watch.Wait(); err != nil {
		t.Errorf("--watch ended by a signal: %v", err)
	}

	broker.Stop()
	if _, err := m.command("status", "--config", m.config, "--choria-config", m.choriaConfig); err == nil || !strings.Contains(err.Error(), "no connection to a broker within 10s") {
		t.Errorf("without a broker: %v", err)
	}
	if err := broker.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, limit, "two instances over new connections", func() error {
		list, err := m.status()
		if err == nil && len(list) != 2 {
			err = fmt.Errorf("%d answer", len(list))
		}
		return err
	})
}

// When nothing works any more, nothing is tried any more; a person repairs it,
// lifts the halt, and has the version started again that was left for it.
func TestHalted(t *testing.T) {
	t.Parallel()
	bin, broker := build(t), harness.StartBroker(t, simfleet.Insecure)
	m := newMachine(t, bin, broker, "provisioner.example.net", insecure(bin, broker))
	m.deliver("v1", bin.first)
	m.start()
	m.runs("v1")
	m.stop()

	good, err := os.ReadFile(m.config)
	if err != nil {
		t.Fatal(err)
	}
	m.write(m.config, string(good)+"workers: -1\n", 0o600)
	m.deliver("v2", bin.second)
	m.start()
	harness.Eventually(t, limit, "the launcher ends", func() error {
		if m.process.Running() {
			return errors.New("it runs")
		}
		return nil
	})
	m.want("verdicts", m.verdicts(), []string{"v2 rolled-back v1", "v1 halted"})
	places := []string{"--state-dir", m.launcher.StateDir, "--libexec", m.launcher.Libexec, "--bin", m.launcher.Bin}
	out, err := m.command(append([]string{"versions", "ls"}, places...)...)
	if err != nil || !strings.HasPrefix(out, "HALTED: v1, which was gone back to, failed as well: 2 failures in a row") {
		t.Errorf("%v: %s", err, out)
	}

	m.write(m.config, string(good), 0o600)
	if _, err := m.command(append([]string{"versions", "release"}, places...)...); err != nil {
		t.Fatal(err)
	}
	m.start()
	s := m.runs("v1")
	m.want("standing verdicts", len(s.Version.Verdicts), 1)
	if _, err := m.command(append([]string{"versions", "release", "v2"}, places...)...); err != nil {
		t.Fatal(err)
	}
	s = m.runs("v2")
	m.want("standing verdicts", len(s.Version.Verdicts), 0)

	// With a pin, it stays; the old versions go.
	if _, err := m.command(append([]string{"versions", "pin", "v2"}, places...)...); err != nil {
		t.Fatal(err)
	}
	m.deliver("v3", bin.second)
	time.Sleep(3 * time.Second)
	m.want("instance", m.runs("v2").Instance, s.Instance)
	out, err = m.command(append([]string{"versions", "retire", "--keep", "0"}, places...)...)
	if err != nil || out != "Removed v1\nRemoved 1 versions, kept 2.\n" {
		t.Errorf("%v: %s", err, out)
	}
	if _, err := m.command(append([]string{"versions", "unpin"}, places...)...); err != nil {
		t.Fatal(err)
	}
	m.runs("v3")
	m.stop()
}
