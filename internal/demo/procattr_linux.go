package demo

import "syscall"

// procAttr starts a process outside of our process group, which a terminal's
// Ctrl-C goes to, and has the kernel end it when we are killed.
func procAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
