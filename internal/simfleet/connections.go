package simfleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// connectionName begins the name of every connection that this package opens.
const connectionName = "simfleet "

// Connection is one connection that a client made to the broker.
type Connection struct {
	// ID is the broker's number for it, not used twice before a restart.
	ID uint64
	// Name is what the client calls itself.
	Name    string
	User    string
	Account string
	TLS     bool
	Opened  time.Time
	// Closed is zero while the connection is open.
	Closed time.Time
	// Reason says why it was closed.
	Reason string
}

// Connections lists the connections that were made since the broker's last
// start, without those of this package. Closed ones are in it (the broker
// remembers the last 10,000), refused ones are not.
func (b *Broker) Connections(ctx context.Context) ([]Connection, error) {
	var others []Connection
	err := b.asSystem(ctx, func(sys *systemClient) error {
		all, err := sys.connections(ctx)
		for _, c := range all {
			if !strings.HasPrefix(c.Name, connectionName) {
				others = append(others, c)
			}
		}

		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connections: %w", err)
	}

	return others, nil
}

// Disconnect closes the open connections whose client calls itself name and
// returns how many those were. A client that reconnects may do so at once.
func (b *Broker) Disconnect(ctx context.Context, name string) (int, error) {
	closed := 0
	err := b.asSystem(ctx, func(sys *systemClient) error {
		all, err := sys.connections(ctx)
		for _, c := range all {
			if c.Name != name || !c.Closed.IsZero() {
				continue
			}
			if err = sys.kick(ctx, c.ID); err != nil {
				return err
			}
			closed++
		}

		return err
	})
	if err != nil {
		return closed, fmt.Errorf("disconnect %s: %w", name, err)
	}

	return closed, nil
}

// asSystem runs do with a connection to the broker's system account.
func (b *Broker) asSystem(ctx context.Context, do func(*systemClient) error) error {
	b.mu.Lock()
	running := b.server
	b.mu.Unlock()
	if running == nil {
		return errStopped
	}

	nc, err := connectInProcess(running, nats.UserInfo(systemUser, systemPassword))
	if err != nil {
		return err
	}
	defer nc.Close()

	return do(&systemClient{nc: nc})
}

// systemClient speaks to the server through its system account, where both
// kinds of broker are alike.
type systemClient struct {
	nc     *nats.Conn
	server string
}

func (s *systemClient) connections(ctx context.Context) ([]Connection, error) {
	request := server.ConnzOptions{Username: true, State: server.ConnAll, Limit: 100_000}
	var response server.ServerAPIConnzResponse
	if err := s.request(ctx, "PING.CONNZ", request, &response); err != nil {
		return nil, err
	}
	if response.Data == nil || response.Server == nil {
		return nil, errors.New("the broker does not list its connections")
	}
	s.server = response.Server.ID

	found := make([]Connection, 0, len(response.Data.Conns))
	for _, c := range response.Data.Conns {
		// what did not pass authentication belongs to no account, what did not
		// come over the network has no port
		if c.Account == "" || c.Port == 0 {
			continue
		}
		conn := Connection{
			ID:      c.Cid,
			Name:    c.Name,
			User:    c.AuthorizedUser,
			Account: c.Account,
			TLS:     c.TLSVersion != "",
			Opened:  c.Start,
			Reason:  c.Reason,
		}
		if c.Stop != nil {
			conn.Closed = *c.Stop
		}
		found = append(found, conn)
	}

	return found, nil
}

func (s *systemClient) kick(ctx context.Context, id uint64) error {
	var response server.ServerAPIResponse

	return s.request(ctx, s.server+".KICK", server.KickClientReq{CID: id}, &response)
}

func (s *systemClient) request(ctx context.Context, subject string, request, response any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()

	msg, err := s.nc.RequestWithContext(ctx, "$SYS.REQ.SERVER."+subject, body)
	if err != nil {
		return err
	}

	var failure struct {
		Error *server.ApiError `json:"error"`
	}
	if err = json.Unmarshal(msg.Data, &failure); err != nil {
		return err
	}
	if failure.Error != nil {
		return failure.Error
	}

	return json.Unmarshal(msg.Data, response)
}
