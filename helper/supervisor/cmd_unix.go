//go:build unix && !linux

package supervisor

import "syscall"

// procAttr starts a plugin as the leader of its own session and process group.
func procAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true}
}

// killTree kills a plugin's process group.
func killTree(pid int) {
	_ = syscall.Kill(-pid, syscall.SIGKILL)
}
