package config

import (
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// CheckReady finds what stops the daemon from running with this configuration
// on this machine, all at once: what the enabled features need and the file
// does not set, and paths that are not there. Each is an Error; for one who
// judges the file alone, on another machine, they are warnings.
func (c *Config) CheckReady() Problems {
	r := &readiness{cfg: c}

	r.helper(c.Helper)
	if c.LogFile != "" {
		r.logDirectory(c.LogFile)
	}
	r.readable("token_file", c.TokenFile)
	r.readable("broker_provisioning_password_file", c.BrokerProvisioningPasswordFile)
	r.readable("state.nats.token_file", c.State.NATS.TokenFile)
	r.readable("state.nats.seed_file", c.State.NATS.SeedFile)

	if c.Features.JWT {
		r.verifyCert()
	}
	if c.Features.ED25519 {
		if c.JWTSigningKey == "" {
			r.add("features.ed25519", "is on without jwt_signing_key: it signs the token of every node, name its file")
		}
		r.readable("jwt_signing_key", c.JWTSigningKey)
		r.readable("jwt_signing_token", c.JWTSigningToken)
	}

	r.problems.sort()
	return r.problems
}

// ReadToken is the provisioning token, from where the configuration has it. A
// file is read anew by each call, without one newline at its end.
func (c *Config) ReadToken() (string, error) {
	return readSecret("token_file", c.TokenFile, c.Token)
}

// ReadBrokerPassword is the password of the user provisioner, as ReadToken.
func (c *Config) ReadBrokerPassword() (string, error) {
	return readSecret("broker_provisioning_password_file", c.BrokerProvisioningPasswordFile, c.BrokerProvisioningPassword)
}

func readSecret(key, path, secret string) (string, error) {
	if path == "" {
		return secret, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", key, err)
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r"), nil
}

// readiness collects what CheckReady finds.
type readiness struct {
	cfg      *Config
	problems Problems
}

func (r *readiness) add(key, format string, args ...any) {
	r.problems = append(r.problems, Problem{
		File: r.cfg.file, Line: r.cfg.lines[key], Key: key,
		Message: fmt.Sprintf(format, args...), Severity: Error,
	})
}

func (r *readiness) helper(h Helper) {
	switch {
	case h.Plugin != "":
		r.executable("helper.plugin", h.Plugin)
	case len(h.Command) > 0:
		r.executable("helper", h.Command[0])
	default:
		r.add("helper", "is not set: name a plugin or the command line of an exec helper, no node is provisioned without")
	}
}

// executable looks for a program as it will be started: by its path, or on PATH
// when the name has no slash.
func (r *readiness) executable(key, program string) {
	_, err := exec.LookPath(program)
	var lookup *exec.Error
	if errors.As(err, &lookup) {
		// Without the name, which the next words repeat.
		err = lookup.Err
	}
	if err != nil {
		r.add(key, "%s cannot be started: %v", program, err)
	}
}

// verifyCert judges a file or a key, in the order in which they are tried.
func (r *readiness) verifyCert() {
	cert := r.cfg.JWTVerifyCert
	if cert == "" {
		feature := "features.jwt"
		if r.cfg.Features.ED25519 {
			feature = "features.ed25519"
		}
		r.add(feature, "is on without jwt_verify_cert: it verifies the token of every node, name its file or the public key")
		return
	}

	if _, err := os.Stat(cert); err != nil {
		key, hexErr := hex.DecodeString(cert)
		switch {
		case hexErr == nil && len(key) == ed25519.PublicKeySize:
			return
		case hexErr == nil:
			r.add("jwt_verify_cert", "no such file, and no ed25519 public key: that has %d hexadecimal digits and this has %d", hex.EncodedLen(ed25519.PublicKeySize), len(cert))
			return
		}
	}
	r.readable("jwt_verify_cert", cert)
}

// readable tries to open a file; an empty path is none to judge.
func (r *readiness) readable(key, path string) {
	if path == "" {
		return
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		r.add(key, "%v", err)
		return
	case info.IsDir():
		r.add(key, "%s is a directory, not a file", path)
		return
	case !info.Mode().IsRegular():
		// Opening a pipe would wait for, or take, what is meant for the daemon.
		return
	}

	f, err := os.Open(path)
	if err != nil {
		r.add(key, "%v", err)
		return
	}
	f.Close()
}

// logDirectory looks for the folder only: the file is made at start.
func (r *readiness) logDirectory(path string) {
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		r.add("logfile", "%v", err)
	}
}
