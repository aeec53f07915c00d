package boltstore

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// owner says which process has locked the file, or nothing. Lines of
// /proc/locks are like "1: FLOCK ADVISORY WRITE 42 fe:00:1234 0 EOF" (proc(5)).
func owner(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return ""
	}
	defer locks.Close()

	inode := ":" + strconv.FormatUint(stat.Ino, 10)
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < 6 || f[1] != "FLOCK" || !strings.HasSuffix(f[5], inode) {
			continue
		}
		name, err := os.ReadFile(filepath.Join("/proc", f[4], "comm"))
		if err != nil {
			return fmt.Sprintf(" (pid %s)", f[4])
		}

		return fmt.Sprintf(" (pid %s, %s)", f[4], strings.TrimSpace(string(name)))
	}

	return ""
}
