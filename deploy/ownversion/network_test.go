package ownversion

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/choria-provisioner/provisioner/deploy/versions"
	"github.com/choria-provisioner/provisioner/status"
)

// network is the broker of a test, with all instances on it.
type network struct {
	t  *testing.T
	mu sync.Mutex
	// down is set while there is no broker, mute while it passes on no answers to
	// a question to all.
	down, mute bool
	hosts      []*host
	// events tell what happened, away who has made way and not proved itself.
	events []string
	away   map[string]bool
	most   int
	began  time.Time
	starts int
	// ctx ends with the test.
	ctx context.Context
}

// behaviour is what a version does once it is started.
type behaviour struct {
	// proves is how long it takes to be healthy; crashes how long until the
	// launcher goes back from it, if it is not 0.
	proves, crashes time.Duration
}

// host is a machine with a launcher, as far as the daemon sees it.
type host struct {
	net  *network
	name string
	versions.Launcher
	script string
	does   map[string]behaviour
	// restart is how long the launcher takes from one daemon to the next.
	restart time.Duration
	leader  bool

	// These are of the daemon that runs.
	running  string
	watch    *Watch
	end      context.CancelFunc
	instance string
	healthy  error
	// answer may change what the status service answers to its own instance.
	answer func(status.Status) (status.Status, error)
	left   int
	logged *logtest.Hook
}

func newNetwork(t *testing.T) *network {
	return &network{t: t, away: map[string]bool{}, began: time.Now(), ctx: t.Context()}
}

func (n *network) host(name string) *host {
	n.t.Helper()
	dir := n.t.TempDir()
	h := &host{
		net: n, name: name, script: filepath.Join(dir, "launch"), does: map[string]behaviour{}, restart: time.Second,
		Launcher: versions.Launcher{StateDir: filepath.Join(dir, "state"), Libexec: filepath.Join(dir, "lib"), Bin: filepath.Join(dir, "bin")},
	}
	for _, d := range []string{h.StateDir, filepath.Join(h.Libexec, "versions")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			n.t.Fatal(err)
		}
	}
	h.replaceLauncher("first")
	n.hosts = append(n.hosts, h)

	return h
}

func (h *host) write(path, text string, mode os.FileMode) {
	h.net.t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		h.net.t.Fatal(err)
	}
}

func (h *host) replaceLauncher(text string) { h.write(h.script, "#!/bin/sh\n# "+text+"\n", 0o755) }

func (h *host) put(name, text string) { h.write(filepath.Join(h.StateDir, name), text, 0o644) }

func (h *host) file(name string) string {
	text, err := os.ReadFile(filepath.Join(h.StateDir, name))
	if err != nil {
		return ""
	}

	return string(text)
}

// deliver puts a version in place as the newest of its number.
func (h *host) deliver(name string, arrival int) {
	h.net.t.Helper()
	folder := filepath.Join(h.Libexec, "versions", name)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		h.net.t.Fatal(err)
	}
	h.write(filepath.Join(folder, versions.Binary), name, 0o755)
	h.write(filepath.Join(folder, ".arrived"), strconv.Itoa(arrival), 0o644)
}

// start starts a daemon, as the launcher does.
func (h *host) start(version string) {
	h.net.mu.Lock()
	h.net.starts++
	h.running, h.instance = version, fmt.Sprintf("%s-%d", h.name, h.net.starts)
	does := h.does[version]
	h.net.mu.Unlock()
	logger, hook := logtest.NewNullLogger()
	ctx, end := context.WithCancel(h.net.ctx)
	began := time.Now()
	watch := New(Config{
		Start:    versions.Start{Launcher: h.Launcher, Version: version, Script: h.script, Tick: 5 * time.Second},
		Instance: h.instance, Place: "place-" + h.name, Build: "1", Digest: "d",
		Reachable: func() bool { return !h.net.isDown() },
		Healthy: func() error {
			h.net.mu.Lock()
			defer h.net.mu.Unlock()
			if time.Since(began) < does.proves {
				return errors.New("not yet")
			}
			return h.healthy
		},
		AskSelf: h.askSelf,
		AskAll:  h.net.askAll,
		Leave:   func(context.Context) { h.leave(end) },
		Log:     logger.WithField("component", "version"),
		Now:     time.Now,
	})
	h.net.mu.Lock()
	h.watch, h.end, h.logged = watch, end, hook
	h.net.mu.Unlock()
	go watch.Run(ctx)
	if does.crashes > 0 {
		time.AfterFunc(does.crashes, func() {
			if ctx.Err() == nil {
				h.goBack(version, end)
			}
		})
	}
}

// leave is the daemon's end for a successor: the launcher starts what is next.
func (h *host) leave(end context.CancelFunc) {
	h.net.mu.Lock()
	h.left++
	h.net.away[h.name] = true
	h.net.event(h.name + " makes way")
	h.net.mu.Unlock()
	// What is in work is finished first.
	h.net.pause(time.Second)
	h.net.mu.Lock()
	h.running = ""
	restart := h.restart
	h.net.mu.Unlock()
	end()
	time.AfterFunc(restart, func() {
		if s, err := h.Read(); err == nil && h.net.ctx.Err() == nil {
			h.start(s.Next)
		}
	})
}

// goBack is what the launcher does after a version failed.
func (h *host) goBack(version string, end context.CancelFunc) {
	end()
	good := h.file("known-good")
	good = good[:len(good)-1]
	h.put("rolled-back", h.file("rolled-back")+version+"\t"+good+"\t1700000000\trolled-back\tcrashed\n")
	h.put("rollback-pinned", good+"\n")
	h.net.mu.Lock()
	h.running = ""
	h.net.event(h.name + " goes back")
	h.net.mu.Unlock()
	h.start(good)
}

// pause waits, but not beyond the end of the test.
func (n *network) pause(d time.Duration) {
	select {
	case <-n.ctx.Done():
	case <-time.After(d):
	}
}

// locked changes what the hosts look at.
func (n *network) locked(do func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	do()
}

func (n *network) event(text string) {
	n.events = append(n.events, fmt.Sprintf("%v %s", time.Since(n.began).Round(time.Second), text))
	n.most = max(n.most, len(n.away))
}

func (n *network) isDown() bool {
	n.mu.Lock()
	defer n.mu.Unlock()

	return n.down
}

var errDown = errors.New("no connection")

// askAll takes its time before and after it hears from all.
func (n *network) askAll(context.Context) ([]status.Status, error) {
	n.pause(time.Duration(rand.IntN(300)) * time.Millisecond)
	defer n.pause(300 * time.Millisecond)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		return nil, errDown
	}
	if n.mute {
		return nil, nil
	}
	var list []status.Status
	for _, h := range n.hosts {
		if s, ok := h.status(); ok {
			list = append(list, s)
		}
	}

	return list, nil
}

// status is what a host's daemon answers, if one runs; the lock is held.
func (h *host) status() (status.Status, bool) {
	if h.running == "" || h.watch == nil {
		return status.Status{}, false
	}
	s := status.Status{
		Instance: h.instance, Place: "place-" + h.name, Identity: h.name, Build: "1", Digest: "d",
		Election: status.Election{Enabled: true, Leader: h.leader}, Version: h.watch.Status(),
	}
	if s.Version.Proved && h.net.away[h.name] && !s.Version.StandsAside {
		delete(h.net.away, h.name)
		h.net.event(h.name + " has proved " + s.Version.Running)
	}

	return s, true
}

func (h *host) askSelf(context.Context) (status.Status, error) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	if h.net.down {
		return status.Status{}, errDown
	}
	s, _ := h.status()
	if h.answer != nil {
		return h.answer(s)
	}

	return s, nil
}

// versions are what runs on each host, in order.
func (n *network) versions() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var list []string
	for _, h := range n.hosts {
		list = append(list, h.running)
	}

	return list
}

// now is what runs, and how often a daemon has ended for a successor.
func (h *host) now() (running string, left int) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()

	return h.running, h.left
}

func (h *host) own() status.Version {
	h.net.mu.Lock()
	watch := h.watch
	h.net.mu.Unlock()

	return *watch.Status()
}

// says tells whether a line of that text was logged by the daemon that runs, and
// how often.
func (h *host) says(text string) int {
	h.net.mu.Lock()
	hook := h.logged
	h.net.mu.Unlock()
	entries := slices.DeleteFunc(hook.AllEntries(), func(e *logrus.Entry) bool { return e.Message != text })

	return len(entries)
}

// statusOf is what a settled instance at a place answers.
func statusOf(place, version string, verdicts ...versions.Verdict) status.Status {
	return status.Status{Instance: place, Place: place, Version: &status.Version{Running: version, Proved: true, Verdicts: verdicts}}
}
