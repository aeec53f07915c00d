package supervisor

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strings"
)

// pin is a file whose checksum was found right.
type pin struct {
	path string
	info os.FileInfo
}

// checkSum compares the sha256 of a file with the hex sum wanted.
func checkSum(path, want string) (*pin, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	info, err := f.Stat()
	if err != nil {
		return nil, err
	}

	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if got := hex.EncodeToString(h.Sum(nil)); !strings.EqualFold(got, want) {
		return nil, fmt.Errorf("%w: %s has sha256 %s, the configuration wants %s", ErrChecksum, path, got, want)
	}

	return &pin{path: path, info: info}, nil
}

// stillThere is asked once the file has been started: it finds a file that took
// the checked one's place in between.
func (p *pin) stillThere() error {
	now, err := os.Stat(p.path)
	if err != nil {
		return err
	}
	if !os.SameFile(now, p.info) || now.Size() != p.info.Size() || !now.ModTime().Equal(p.info.ModTime()) {
		return fmt.Errorf("%w: %s was replaced while it was started", ErrChecksum, p.path)
	}

	return nil
}
