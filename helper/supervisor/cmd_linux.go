package supervisor

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// procAttr starts a plugin as the leader of its own session and process group,
// and has the kernel end it when the thread that started it ends.
func procAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}

// killTree kills a plugin's process group and then whatever else is left in its
// session: an exec helper's scripts have process groups of their own.
func killTree(pid int) {
	_ = syscall.Kill(-pid, syscall.SIGKILL)

	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range stats {
		if sessionOf(stat) != pid {
			continue
		}
		if member, err := strconv.Atoi(filepath.Base(filepath.Dir(stat))); err == nil {
			_ = syscall.Kill(member, syscall.SIGKILL)
		}
	}
}

// sessionOf reads the session from a /proc/PID/stat file (proc(5), field 6), or
// 0. The fields are counted from behind the command's name, which may hold
// spaces and parentheses.
func sessionOf(stat string) int {
	b, err := os.ReadFile(stat)
	if err != nil {
		return 0
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 4 {
		return 0
	}
	session, _ := strconv.Atoi(string(fields[3]))

	return session
}
