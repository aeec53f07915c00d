package suite

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/choria-io/go-choria/choria"
	"github.com/choria-io/go-choria/config"
	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

const simulatedTTL = 5 * time.Second

// Simulated is a simulated network for as long as the test lasts, whose
// provisioners connect through go-choria.
func Simulated(t *testing.T, mode simfleet.Mode) Network {
	t.Helper()

	broker, err := simfleet.StartBroker(t.Context(), simfleet.BrokerOptions{Mode: mode, ElectionTTL: simulatedTTL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := broker.Close(); err != nil {
			t.Error(err)
		}
	})

	return Network{
		TTL: simulatedTTL,
		Connect: func(t *testing.T, identity string) *nats.Conn {
			t.Helper()
			nc, err := connect(t, broker, identity)
			if err != nil {
				t.Fatal(err)
			}
			return nc
		},
	}
}

func connect(t *testing.T, broker *simfleet.Broker, identity string) (*nats.Conn, error) {
	file, err := broker.ProvisionerConfig(identity)
	if err != nil {
		return nil, err
	}
	cfg, err := config.NewConfig(file)
	if err != nil {
		return nil, err
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	cfg.CustomLogger = log
	cfg.DisableTLS = broker.Mode() == simfleet.Insecure
	cfg.DisableSecurityProviderVerify = cfg.DisableTLS
	cfg.Collectives = []string{"provisioning"}
	cfg.MainCollective = "provisioning"
	cfg.Choria.NatsUser = "provisioner"
	cfg.Choria.NatsPass = broker.Password()
	fw, err := choria.NewWithConfig(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	conn, err := fw.NewConnector(ctx, fw.MiddlewareServers, identity, logrus.NewEntry(log))
	if err != nil {
		cancel()
		return nil, err
	}
	t.Cleanup(func() { cancel(); conn.Close() })

	return conn.Nats(), nil
}
