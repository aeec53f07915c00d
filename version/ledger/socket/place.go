//go:build unix

package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// ErrInUse is returned by Listen while another process serves the socket.
var ErrInUse = errors.New("another process serves it")

// place is a socket's path, which is one process's as long as that has it. It is
// locked by a file beside it: the system lets go of the lock of a process that
// dies, so that a socket without one belongs to nobody.
type place struct {
	path string
	lock *os.File
}

// take locks a path. The lock's file stays: to remove it would let two have it.
func take(path string) (*place, error) {
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, ErrInUse
		}
		return nil, fmt.Errorf("locking: %w", err)
	}

	return &place{path: path, lock: lock}, nil
}

// listen makes the socket, in the place of one that a dead process left. It is
// never open to others: its mode is set before it has a name.
func (p *place) listen(ctx context.Context) (net.Listener, error) {
	if err := p.clear(); err != nil {
		return nil, err
	}
	address, release, err := shorten(p.path)
	if err != nil {
		return nil, err
	}
	defer release()

	config := net.ListenConfig{Control: narrow}
	l, err := config.Listen(ctx, "unix", address)
	if err != nil {
		return nil, err
	}
	// The name is removed by the path, which the address may not be.
	l.(*net.UnixListener).SetUnlinkOnClose(false)

	return l, nil
}

// clear removes what a dead process left, and nothing but that.
func (p *place) clear() error {
	info, err := os.Lstat(p.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("something stands there that is no socket (%s): remove it", info.Mode())
	}

	return os.Remove(p.path)
}

// leave removes the socket and gives the path free.
func (p *place) leave() error {
	err := os.Remove(p.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}

	return errors.Join(err, p.lock.Close())
}

// longestAddress is what fits into sockaddr_un on every system.
const longestAddress = 103

// shorten returns an address for the path of a socket, which may be longer than
// an address. It holds until release is called.
func shorten(path string) (address string, release func(), err error) {
	if len(path) <= longestAddress {
		return path, func() {}, nil
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return "", nil, err
	}

	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)), func() { _ = dir.Close() }, nil
}
