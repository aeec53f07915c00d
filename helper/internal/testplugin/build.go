package testplugin

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Build compiles a program of this module, or any other package, for a TestMain.
// The caller removes the folder of the program.
func Build(pkg string) (program string, err error) {
	dir, err := os.MkdirTemp("", "helper-test")
	if err != nil {
		return "", err
	}
	program = filepath.Join(dir, "plugin")
	out, err := exec.Command("go", "build", "-o", program, pkg).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
	}

	return program, nil
}

// Program is the package of the test plugin as a program.
const Program = "github.com/choria-provisioner/provisioner/helper/internal/testplugin/run"
