//go:build unix && !linux

package execadapter

import "syscall"

// procAttr gives a program its own process group, to be killed with its children.
func procAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
