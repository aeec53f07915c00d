//go:build unix && !linux

package socket

import (
	"errors"
	"syscall"
)

// narrow refuses where a socket cannot be made with the right mode.
func narrow(string, string, syscall.RawConn) error {
	return errors.New("a socket for its owner alone can be made on Linux only")
}
