package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
)

func TestVersionCompare(t *testing.T) {
	for _, tt := range []struct {
		name   string
		args   []string
		stdin  string
		code   int
		stdout string
		stderr string
	}{
		{name: "older", args: []string{"1.2~rc1", "1.2"}, stdout: "-1\n"},
		{name: "equal to RPM", args: []string{"1.2", "1.02"}, stdout: "0\n"},
		{name: "newer by its epoch", args: []string{"1:1.0", "2.0"}, stdout: "1\n"},
		{name: "one version is not enough", args: []string{"1.2"}, code: 1, stderr: "choria-provisioner: version compare: two versions are needed, or --stdin\n"},
		{name: "versions and --stdin", args: []string{"--stdin", "1", "2"}, code: 1, stderr: "choria-provisioner: version compare: name two versions or use --stdin, not both\n"},
		{name: "pairs", args: []string{"--stdin"}, stdin: "1\t2\n2\t1\n1\t1\n", stdout: "-1\n1\n0\n"},
		{name: "the last line may lack its end", args: []string{"--stdin"}, stdin: "1\t2\n1\t1", stdout: "-1\n0\n"},
		{name: "lines that end as on Windows", args: []string{"--stdin"}, stdin: "1\t1\r\n", stdout: "0\n"},
		{name: "an empty version", args: []string{"--stdin"}, stdin: "\t1\n", stdout: "-1\n"},
		{name: "nothing", args: []string{"--stdin"}},
		{
			name: "bad lines are named, the others are answered", args: []string{"--stdin"},
			stdin: "1\t2\n\n1 2\n1\t2\t3\n2\t1\n", code: 1, stdout: "-1\n1\n",
			stderr: "choria-provisioner: version compare: line 2 is not two versions separated by a tab\n" +
				"choria-provisioner: version compare: line 3 is not two versions separated by a tab\n" +
				"choria-provisioner: version compare: line 4 is not two versions separated by a tab\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), append([]string{"version", "compare"}, tt.args...), strings.NewReader(tt.stdin), &stdout, &stderr)
			if code != tt.code || stdout.String() != tt.stdout || stderr.String() != tt.stderr {
				t.Errorf("code %d, stdout %q, stderr %q", code, stdout.String(), stderr.String())
			}
		})
	}
}

// A program that waits for each answer before it asks again gets it.
func TestVersionCompareAnswersAtOnce(t *testing.T) {
	questions, ask := io.Pipe()
	answers, answer := io.Pipe()
	done := make(chan int)
	go func() {
		done <- run(t.Context(), []string{"version", "compare", "--stdin"}, questions, answer, io.Discard)
	}()

	reader := bufio.NewReader(answers)
	for range 3 {
		fmt.Fprint(ask, "1\t2\n")
		if line, err := reader.ReadString('\n'); err != nil || line != "-1\n" {
			t.Fatalf("answer %q, %v", line, err)
		}
	}
	ask.Close()
	if code := <-done; code != 0 {
		t.Errorf("code %d", code)
	}
}
