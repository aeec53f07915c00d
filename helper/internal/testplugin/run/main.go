// Command run is the test plugin as a program. Its arguments are things to do
// before it serves.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
	"github.com/choria-provisioner/provisioner/helper/internal/testplugin"
)

func main() {
	p := testplugin.New()
	for _, arg := range os.Args[1:] {
		what, value, _ := strings.Cut(arg, "=")
		switch what {
		case "print":
			fmt.Println(value)
		case "complain":
			fmt.Fprintln(os.Stderr, value)
		case "exit":
			os.Exit(3)
		case "silent":
			time.Sleep(time.Hour)
		case "unconfigurable":
			p.Configure, p.Validate = nil, nil
		case "raw-claims":
			p.Capabilities = append(p.Capabilities, helperv1.Capability_CAPABILITY_RAW_CLAIMS)
		case "child":
			// A child in a process group of its own that holds the outputs open.
			child := exec.Command("sh", "-c", "echo $$ > "+value+"; exec sleep 600")
			child.Stdout, child.Stderr = os.Stdout, os.Stderr
			child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			if err := child.Start(); err != nil {
				panic(err)
			}
			for {
				if b, err := os.ReadFile(value); err == nil && len(b) > 0 {
					break
				}
				time.Sleep(time.Millisecond)
			}
		}
	}
	helper.Serve(p)
	fmt.Fprintln(os.Stderr, "served")
}
