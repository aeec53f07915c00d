package status

import (
	"context"
	"crypto/tls"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// Where the broker has a provisioning account, the nodes that wait in it neither
// ask nor answer. How the daemon fares there, e2e/ownversions shows.
func TestWaitingNodesAreKeptOut(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	broker, err := simfleet.StartBroker(ctx, simfleet.BrokerOptions{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := broker.Close(); err != nil {
			t.Error(err)
		}
	})
	token, err := os.ReadFile(broker.ProvisioningJWT())
	if err != nil {
		t.Fatal(err)
	}

	refused := make(chan string, 100)
	node, err := nats.Connect(broker.URL(), nats.Token(string(token)),
		nats.Secure(&tls.Config{InsecureSkipVerify: true}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err.Error() }))
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()

	subjects := []string{subject, instanceSubject("a"), "$SRV.PING"}
	for _, s := range subjects {
		if _, err := node.Subscribe(s, func(*nats.Msg) { t.Errorf("a node heard %s", s) }); err != nil {
			t.Fatal(err)
		}
		if err := node.Publish(s, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := node.FlushTimeout(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	var said []string
	for range 2 * len(subjects) {
		select {
		case text := <-refused:
			said = append(said, text)
		case <-time.After(10 * time.Second):
			t.Fatalf("the broker refused only %q", said)
		}
	}
	for _, s := range subjects {
		for _, what := range []string{"Subscription", "Publish"} {
			if !slices.ContainsFunc(said, func(text string) bool { return strings.Contains(text, what) && strings.Contains(text, `"`+s+`"`) }) {
				t.Errorf("%s to %s was not refused: %q", what, s, said)
			}
		}
	}
}
