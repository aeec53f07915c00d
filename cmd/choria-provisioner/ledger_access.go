package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"syscall"

	"github.com/choria-io/fisk"

	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/boltstore"
	"github.com/choria-provisioner/provisioner/version/ledger/book"
	"github.com/choria-provisioner/provisioner/version/ledger/socket"
)

// The exit codes of commands that use the ledger, besides 0 and 1.
const (
	// exitNoLedger is a ledger that cannot be reached.
	exitNoLedger = 2
	// exitNoRecord is a node without a record.
	exitNoRecord = 3
	// exitRefused is something that the record's state forbids.
	exitRefused = 4
)

// ledgerAccess is how a command reaches the ledger: through the daemon that
// runs, else in its file.
type ledgerAccess struct {
	cli      *cli
	config   string
	stateDir string
	// create makes a ledger where there is none.
	create bool
}

func (l *ledgerAccess) addFlags(cmd *fisk.CmdClause) {
	cmd.Flag("config", "The daemon's configuration file, for its state_dir").PlaceHolder("FILE").StringVar(&l.config)
	cmd.Flag("state-dir", "The daemon's state directory").PlaceHolder("DIR").StringVar(&l.stateDir)
}

// dir is the state directory.
func (l *ledgerAccess) dir() (string, error) {
	switch {
	case l.stateDir != "":
		return l.stateDir, nil
	case l.config != "":
		cfg, _, err := loadConfig(l.cli, l.config)
		if err != nil {
			return "", err
		}
		return cfg.StateDir, nil
	default:
		return "", errors.New("name the state directory: --config FILE or --state-dir DIR")
	}
}

// use hands the ledger to do. Its file is let go of before what do writes is
// printed: a daemon could not start while somebody pages through a list.
func (l *ledgerAccess) use(do func(b book.Book, out io.Writer) error) error {
	dir, err := l.dir()
	if err != nil {
		return err
	}
	client, err := socket.Dial(l.cli.ctx, dir)
	switch {
	case err == nil:
		defer client.Close()
		return withCode(do(client, l.cli.stdout))
	case !errors.Is(err, socket.ErrNoDaemon):
		return coded{exitNoLedger, permitted(dir, err)}
	}

	file, err := l.open(dir)
	if err != nil {
		return coded{exitNoLedger, permitted(dir, err)}
	}
	out, err := newSpool()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	defer out.Close()

	err = errors.Join(do(file, out), file.Close())

	return errors.Join(withCode(err), out.copyTo(l.cli.stdout))
}

func (l *ledgerAccess) open(dir string) (*book.File, error) {
	file, err := book.OpenFile(l.cli.ctx, dir)
	if l.create && errors.Is(err, book.ErrNoLedger) {
		if err := ours(dir); err != nil {
			return nil, err
		}
		file, err = book.CreateFile(l.cli.ctx, dir)
	}
	if errors.Is(err, boltstore.ErrLocked) {
		return nil, fmt.Errorf("%w: a daemon that is starting or without a socket? Try again", err)
	}

	return file, err
}

// ours tells whether a file that this user makes in a directory is the daemon's
// to open.
func ours(dir string) error {
	uid, known := owner(dir)
	if !known || uid == os.Geteuid() {
		return nil
	}

	return fmt.Errorf("what is made in %s has to be its owner's, for the daemon: run this as %s", dir, userName(uid))
}

// permitted says who may do what this user may not.
func permitted(dir string, err error) error {
	uid, known := owner(dir)
	if !errors.Is(err, fs.ErrPermission) || !known {
		return err
	}

	return fmt.Errorf("%w: run this as %s, whose directory it is", err, userName(uid))
}

func owner(path string) (uid int, known bool) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}

	return int(stat.Uid), true
}

func userName(uid int) string {
	id := strconv.Itoa(uid)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}

	return "the user " + id
}

// warnSetAside tells of a record that cannot be read.
func (l *ledgerAccess) warnSetAside(identity string, err error) {
	fmt.Fprintf(l.cli.stderr, "warning: the record of %s is set aside: %s\n", printable(identity), printable(err.Error()))
}

// coded is an error with an exit code.
type coded struct {
	code int
	error
}

func (c coded) Unwrap() error { return c.error }

// withCode gives an error of the ledger its exit code.
func withCode(err error) error {
	for _, c := range []struct {
		code int
		of   []error
	}{
		{exitNoRecord, []error{ledger.ErrNotFound, ledger.ErrCorrupt}},
		{exitRefused, []error{ledger.ErrUnderWay, ledger.ErrNothingHeld, ledger.ErrNewer}},
		{exitNoLedger, []error{ledger.ErrStaleEpoch, ledger.ErrClosed}},
	} {
		for _, of := range c.of {
			if errors.Is(err, of) {
				return coded{c.code, err}
			}
		}
	}

	return err
}

// spool keeps what is printed later. It is on disk: a fleet's export is long.
type spool struct{ *os.File }

func newSpool() (*spool, error) {
	f, err := os.CreateTemp("", "choria-provisioner-")
	if err != nil {
		return nil, fmt.Errorf("room for the output: %w", err)
	}
	// Nobody else needs its name, and nothing is left behind.
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}

	return &spool{f}, nil
}

func (s *spool) copyTo(w io.Writer) error {
	if _, err := s.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err := io.Copy(w, s.File)

	return err
}
