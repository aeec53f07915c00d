package socket

import "syscall"

// narrow makes a socket its owner's before it is bound: on Linux a socket's file
// gets the mode of its descriptor.
func narrow(_, _ string, conn syscall.RawConn) error {
	var err error
	if control := conn.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) }); control != nil {
		return control
	}

	return err
}
