package election_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/election"
	"github.com/choria-provisioner/provisioner/election/internal/natstest"
)

// memberURL makes this test binary a provisioner's part in an election at the
// server it names.
const memberURL = "ELECTION_TEST_MEMBER_URL"

func TestMain(m *testing.M) {
	if url := os.Getenv(memberURL); url != "" {
		if err := runMember(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}

	// Elections are mostly waited for, which needs no processor.
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// runMember prints, as fast as it is read, the time and whether the gate is
// open, until its standard output is closed.
func runMember(url string) error {
	nc, err := nats.Connect(url, nats.UserInfo(natstest.Imported, "x"), nats.MaxReconnects(-1))
	if err != nil {
		return err
	}
	defer nc.Close()

	log := logrus.New()
	log.SetOutput(io.Discard)
	gate := election.NewGate()
	e := election.New(election.Config{
		Identity: "stopped.example.net",
		Connect:  func(context.Context) (*nats.Conn, error) { return nc, nil },
		Gate:     gate,
		Log:      logrus.NewEntry(log),
	})
	go e.Run(context.Background())

	for {
		// One write a line, and asked right before it: what a call to a node
		// would find.
		if _, err := fmt.Printf("%v %d\n", gate.IsOpen(), time.Now().UnixNano()); err != nil {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
}

// A process that was stopped past its lease, by a signal or with its virtual
// machine, must not act as leader for even one call when it goes on.
func TestElector_stoppedProcess(t *testing.T) {
	t.Parallel()
	s := natstest.StartServer(t)
	s.CreateBucket(shortTTL)

	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), memberURL+"="+s.URL())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})

	type look struct {
		open bool
		at   time.Time
	}
	looks := make(chan look, 1<<20)
	go func() {
		defer close(looks)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var l look
			var nanos int64
			if _, err := fmt.Fscan(strings.NewReader(lines.Text()), &l.open, &nanos); err == nil {
				l.at = time.Unix(0, nanos)
				looks <- l
			}
		}
	}()
	until := func(what string, ok func(look) bool) look {
		t.Helper()
		timeout := time.After(network(s, natstest.Imported).Election())
		for {
			select {
			case l, more := <-looks:
				if !more {
					t.Fatalf("the member ended before: %s", what)
				}
				if ok(l) {
					return l
				}
			case <-timeout:
				t.Fatalf("not in time: %s", what)
			}
		}
	}

	until("elected", func(l look) bool { return l.open })
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	<-time.After(shortTTL + time.Second) // the lease runs out
	resumed := time.Now()
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}

	// A look from before the stop may be printed after it.
	until("it goes on", func(l look) bool {
		if l.open && l.at.After(stopped.Add(shortTTL)) {
			t.Fatalf("the gate was open %v after the process went on", l.at.Sub(resumed))
		}
		return !l.open && l.at.After(resumed)
	})
	again := until("elected again", func(l look) bool { return l.open })
	if d := again.at.Sub(resumed); d < time.Second {
		t.Errorf("open %v after it went on: it cannot have been elected", d)
	}
}
