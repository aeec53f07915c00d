package main

import (
	"time"

	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/fleet"
)

// newAuditor returns a logger that writes where and how logger does, and at
// level info whatever the level of that: no audit line is lost to loglevel.
func newAuditor(logger *logrus.Logger) *logrus.Logger {
	return &logrus.Logger{
		Out:       logger.Out,
		Hooks:     logger.Hooks,
		Formatter: logger.Formatter,
		Level:     logrus.InfoLevel,
		ExitFunc:  logger.ExitFunc,
	}
}

// audit writes the one line about a pass. Every field is there on every line,
// empty where the pass did not come so far.
func (d *daemon) audit(p fleet.Pass) {
	info := d.helper.Info()
	fields := logrus.Fields{
		"component":          "audit",
		"identity":           p.Identity,
		"result":             string(p.Outcome.Result),
		"reason":             p.Outcome.Reason,
		"duration":           p.Duration.Round(time.Millisecond).String(),
		"key_sha256":         p.Outcome.KeyFingerprint,
		"certificate_serial": p.Outcome.CertificateSerial,
		"jwt_id":             p.Outcome.JWTID,
		"version":            p.Outcome.Version,
		"helper":             info.Name,
		"helper_build":       info.Build,
		"epoch":              p.Outcome.Epoch,
		"error":              "",
	}
	if p.Err != nil {
		fields["error"] = p.Err.Error()
	}
	d.auditor.WithFields(fields).Info("pass ended")
}
