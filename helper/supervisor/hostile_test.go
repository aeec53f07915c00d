package supervisor_test

import (
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/choria-provisioner/provisioner/helper/supervisor"
)

// silent makes a configuration whose log is not kept.
func silent(cfg supervisor.Config) supervisor.Config {
	log := logrus.New()
	log.SetOutput(io.Discard)
	cfg.Log = logrus.NewEntry(log)

	return cfg
}

// kilobytes reads a number from /proc/self/status.
func kilobytes(t *testing.T, name string) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s in %s", name, text)

	return 0
}

// However much a helper writes, it is answered, and little of it is held.
func TestTorrents(t *testing.T) {
	cfg := silent(newRecorder().config())
	cfg.Timeout = time.Minute
	s := start(t, cfg)
	answers(t, s)
	before := kilobytes(t, "VmHWM")
	for _, identity := range []string{"torrent stdout line", "torrent stdout lines", "torrent stderr line", "torrent stderr lines"} {
		t.Run(identity, func(t *testing.T) {
			got, err := s.ConfigureNode(t.Context(), node(identity))
			if err != nil || got.GetConfigure().GetConfiguration()["identity"] != identity {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
	answers(t, s)

	const most = 64 << 10
	if grown := kilobytes(t, "VmHWM") - before; grown > most {
		t.Errorf("memory grew by %d KiB", grown)
	}
}

// A helper that dies again and again costs its nodes time, and nothing else:
// each call is answered or ends as unavailable, which defers the node.
func TestEveryThirdCallKills(t *testing.T) {
	cfg := silent(newRecorder().config())
	// Nobody reads the recorder's states here.
	cfg.Metrics = nil
	cfg.Restart.Min, cfg.Restart.Max = time.Millisecond, time.Millisecond
	s := start(t, cfg)

	const workers, wanted = 4, 10
	var calls sync.WaitGroup
	for range workers {
		calls.Go(func() {
			answered := 0
			for end := time.Now().Add(time.Minute); answered < wanted && time.Now().Before(end); {
				switch _, err := s.ConfigureNode(t.Context(), node("third")); status.Code(err) {
				case codes.OK:
					answered++
				case codes.Unavailable:
					// As the fleet does: the node comes back later.
					time.Sleep(5 * time.Millisecond)
				default:
					t.Errorf("got %v", err)
				}
			}
			if answered < wanted {
				t.Errorf("%d of %d nodes were answered", answered, wanted)
			}
		})
	}
	calls.Wait()
}

// The breaker: a helper that starts but dies at work is left alone for a while,
// visibly, and tried again.
func TestBreaker(t *testing.T) {
	r := newRecorder()
	cfg := silent(r.config())
	cfg.Restart = supervisor.Restart{Min: time.Millisecond, Max: time.Millisecond, Limit: 3, Window: time.Minute, Pause: 300 * time.Millisecond}
	s := start(t, cfg)

	done := make(chan struct{})
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if _, err := s.ConfigureNode(t.Context(), node("exit")); status.Code(err) != codes.Unavailable {
					t.Errorf("got %v", err)
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	r.await(t, supervisor.CrashLoop)
	close(done)
	calls.Wait()

	began := time.Now()
	r.await(t, supervisor.Running)
	if waited := time.Since(began); waited < 200*time.Millisecond {
		t.Errorf("it was started again after %v", waited)
	}
	answers(t, s)
	if s.Failure() == nil {
		t.Error("no reason is known")
	}
}

// Stopped in the middle of calls, a helper is replaced; the calls end within
// their deadline.
func TestStoppedInACall(t *testing.T) {
	r := newRecorder()
	cfg := r.config()
	cfg.Timeout = 20 * time.Second
	// Slow enough for the calls to be there first on a busy machine.
	cfg.Health = supervisor.Health{Interval: 200 * time.Millisecond, Timeout: time.Second, Failures: 2}
	s := start(t, cfg)
	answers(t, s)

	began := time.Now()
	const inFlight = 8
	begun := make(chan struct{}, inFlight)
	var calls sync.WaitGroup
	for range inFlight {
		calls.Go(func() {
			begun <- struct{}{}
			if _, err := s.ConfigureNode(t.Context(), node("hang")); status.Code(err) != codes.Unavailable {
				t.Errorf("got %v", err)
			}
		})
	}
	for range inFlight {
		<-begun
	}
	if err := syscall.Kill(s.Info().PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	calls.Wait()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the calls took %v", took)
	}
	r.await(t, supervisor.Restarting)
	r.await(t, supervisor.Running)
	answers(t, s)
}

// usage is what a leak would show in.
type usage struct{ goroutines, files, heapKB, rssKB int }

func measure(t *testing.T) usage {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)

	return usage{runtime.NumGoroutine(), len(files), int(m.HeapAlloc >> 10), kilobytes(t, "VmRSS")}
}

// Crash after crash, with a child left each time, nothing grows.
func TestCrashCycles(t *testing.T) {
	shortTemp(t)
	r := newRecorder()
	cfg := silent(r.config())
	cfg.Restart = supervisor.Restart{Min: time.Millisecond, Max: time.Millisecond, Limit: allCycles + 1}
	s := start(t, cfg)

	var first usage
	for n := range allCycles {
		if n == firstCycles {
			first = measure(t)
		}
		if err := syscall.Kill(s.Info().PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		r.await(t, supervisor.Restarting)
		r.await(t, supervisor.Running)
		answers(t, s)
	}
	last := measure(t)
	t.Logf("after %d crashes %+v, after %d %+v", firstCycles, first, allCycles, last)

	// Some slack for goroutines on their way out and the collector's moods.
	const slackKB = 16 << 10
	if last.goroutines > first.goroutines+10 || last.files > first.files+5 || last.heapKB > first.heapKB+slackKB/4 || last.rssKB > first.rssKB+slackKB {
		t.Errorf("after %d crashes %+v, after %d %+v", firstCycles, first, allCycles, last)
	}
	if left := sockets(t); len(left) != 1 {
		t.Errorf("folders of sockets: %v", left)
	}
	if left := children(t); len(left) != 1 {
		t.Errorf("children: %v", left)
	}
}
