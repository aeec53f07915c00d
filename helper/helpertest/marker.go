package helpertest

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// markerVariable is in the environment of the helper under test, and so of what
// it starts.
const markerVariable = "CHORIA_PROVISIONER_HELPERTEST"

// marker is the variable's value; it tells one test's processes from any others.
// It needs /proc, and finds nothing elsewhere.
type marker string

func newMarker() marker { return marker(rand.Text()) }

// leaving is what a process has to vanish after its helper has.
const leaving = 500 * time.Millisecond

// sweep waits for the marked processes to end, kills the rest and names them.
// It is called when no helper runs.
func (m marker) sweep() (left []string) {
	pids := m.processes()
	for end := time.Now().Add(leaving); len(pids) > 0 && time.Now().Before(end); pids = m.processes() {
		time.Sleep(10 * time.Millisecond)
	}
	for _, pid := range pids {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		left = append(left, strings.TrimSpace(string(name)))
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}

	return left
}

func (m marker) processes() (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range files {
		// That of a zombie is empty.
		env, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(env, []byte(markerVariable+"="+string(m))) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}

	return pids
}

// descriptors are the open files of a process; ok is false where they cannot be
// counted.
func descriptors(pid int) (n int, ok bool) {
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return len(files), err == nil
}
