package versions

import (
	"os"
	"strings"
)

// lives tells whether a process runs and began at that time, in clock ticks from
// boot (proc(5), stat, field 22): another one may have the same id by now.
func lives(pid, born string) bool {
	if _, ok := digits(pid, 9); !ok {
		return false
	}
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return false
	}
	// The name before the last bracket may hold anything.
	stat := string(text)
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])

	return len(fields) >= 20 && fields[19] == born && fields[0] != "Z" && fields[0] != "X"
}
