//go:build unix && !linux

package demo

import "syscall"

// procAttr starts a process outside of our process group, which a terminal's
// Ctrl-C goes to.
func procAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
