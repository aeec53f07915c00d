package execadapter

import "syscall"

// procAttr gives a program its own process group, to be killed with its
// children, and has the kernel end it with the adapter. That is tied to the
// thread that starts it, and Go ends no thread that no goroutine locked.
func procAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
