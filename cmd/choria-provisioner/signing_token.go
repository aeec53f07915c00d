package main

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/host"
	"github.com/choria-provisioner/provisioner/metrics"
)

const (
	// signingTokenInterval is how often the file is looked at.
	signingTokenInterval = time.Minute
	// signingTokenNotice is how long before its end a token is warned about.
	signingTokenNotice = 14 * 24 * time.Hour
)

// watchSigningToken shows when the signing token expires and says what is wrong
// with it, at once and whenever that changes, rather than when the first node
// is refused.
func watchSigningToken(ctx context.Context, file string, m *metrics.Metrics, log *logrus.Entry) {
	tick := time.NewTicker(signingTokenInterval)
	defer tick.Stop()

	said := ""
	for {
		expires, err := host.CheckSigningToken(file)
		m.SigningTokenExpires(expires)
		level, text := logrus.InfoLevel, "jwt_signing_token is valid until "+expires.UTC().Format(time.RFC3339)
		switch {
		case err != nil:
			level, text = logrus.ErrorLevel, "No node can be given a server JWT: jwt_signing_token: "+err.Error()
		case time.Until(expires) < signingTokenNotice:
			level, text = logrus.WarnLevel, "jwt_signing_token expires soon, at "+expires.UTC().Format(time.RFC3339)
		}
		if text != said {
			log.Log(level, text)
			said = text
		}

		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
