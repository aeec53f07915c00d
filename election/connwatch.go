package election

import (
	"time"

	"github.com/nats-io/nats.go"
)

// connWatch wakes whoever selects on it when something may have happened to a
// connection. nats.go gives up on a listener that has not taken its last event
// by the next one; so each kind has a channel of its own, and tick makes up for
// what is missed all the same.
type connWatch struct {
	nc                  *nats.Conn
	lost, found, closed chan nats.Status
	tick                *time.Ticker
	reconnects          uint64
}

func watch(nc *nats.Conn) *connWatch {
	return &connWatch{
		nc:         nc,
		lost:       nc.StatusChanged(nats.RECONNECTING),
		found:      nc.StatusChanged(nats.CONNECTED),
		closed:     nc.StatusChanged(nats.CLOSED),
		tick:       time.NewTicker(watchInterval),
		reconnects: nc.Stats().Reconnects,
	}
}

// dropped says whether the connection is lost, or was and has been found again
// since the last call.
func (w *connWatch) dropped() bool {
	before := w.reconnects
	w.reconnects = w.nc.Stats().Reconnects

	return !w.nc.IsConnected() || w.reconnects != before
}

func (w *connWatch) close() {
	w.tick.Stop()
	for _, ch := range []chan nats.Status{w.lost, w.found, w.closed} {
		w.nc.RemoveStatusListener(ch)
	}
}
