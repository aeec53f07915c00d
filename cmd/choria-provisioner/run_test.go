package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/choria-provisioner/provisioner/config"
	"github.com/choria-provisioner/provisioner/version/ledger/boltstore"
)

// To read a large ledger takes longer than a daemon that is told to end may.
func TestEndWhileTheLedgerIsRead(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "provisioner.yaml")
	text := "choria_insecure: true\nhelper: /bin/true\nstate_dir: " + dir + "\nfeatures:\n  upgrades: true\n"
	choriaConfig := filepath.Join(dir, "client.conf")
	for name, text := range map[string]string{file: text, choriaConfig: "plugin.choria.middleware_hosts = 127.0.0.1:1\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, _, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}

	ctx, end := context.WithCancel(t.Context())
	end()
	logger, closeLog, err := newLogger(filepath.Join(dir, "log"), "info", os.Stdout, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	defer closeLog()
	cmd := &runCommand{cli: &cli{ctx: ctx}, choriaConfig: choriaConfig}
	if err := cmd.serve(cfg, logger); err != nil {
		t.Errorf("an end that was asked for is an error: %v", err)
	}
	store, err := boltstore.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if epoch, err := store.Epoch(t.Context()); err != nil || epoch != 0 {
		t.Errorf("epoch %d, %v", epoch, err)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}
