package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	// ticks are a second of CPU time in /proc (proc(5); USER_HZ is 100 wherever
	// Go runs on Linux).
	ticks = 100

	// Fields of /proc/PID/stat, counted from behind the command's name.
	statParent       = 1
	statUser         = 11
	statSystem       = 12
	statChildrenUser = 13
	statChildrenSys  = 14
)

// usage is what one process used, and the children of it that have ended.
type usage struct {
	CPUSeconds         float64 `json:"cpu_seconds"`
	ChildrenCPUSeconds float64 `json:"children_cpu_seconds"`
	// PeakMB is the largest resident set, in MiB.
	PeakMB float64 `json:"peak_mb"`
}

func usageOf(pid int) (usage, error) {
	stat, err := statOf(pid)
	if err != nil {
		return usage{}, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return usage{}, err
	}

	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	var kib float64
	if _, err := fmt.Sscan(peak, &kib); err != nil {
		return usage{}, fmt.Errorf("peak memory of process %d: %w", pid, err)
	}

	return usage{
		CPUSeconds:         float64(stat[statUser]+stat[statSystem]) / ticks,
		ChildrenCPUSeconds: float64(stat[statChildrenUser]+stat[statChildrenSys]) / ticks,
		PeakMB:             round(kib/1024, 10),
	}, nil
}

// childOf is the one child of a process.
func childOf(parent int) (int, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if stat, err := statOf(pid); err == nil && stat[statParent] == parent {
			return pid, nil
		}
	}

	return 0, fmt.Errorf("process %d has no child", parent)
}

// statOf reads the fields of /proc/PID/stat behind the command's name, which may
// hold spaces; those that are no number are 0.
func statOf(pid int) ([]int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) <= statChildrenSys {
		return nil, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	numbers := make([]int, len(fields))
	for i, f := range fields {
		numbers[i], _ = strconv.Atoi(string(f))
	}

	return numbers, nil
}
