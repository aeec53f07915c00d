package helper

import "github.com/hashicorp/go-plugin"

// The handshake of go-plugin between the host and a helper. The host sets the
// cookie in the helper's environment; a program without it was started by hand.
// The cookie is no secret. A helper in another language checks the same values
// (docs/helpers.md).
const (
	MagicCookieKey   = "CHORIA_PROVISIONER_HELPER"
	MagicCookieValue = "b65f2c0e-0c1d-4f0a-9d7e-3d1f3f5b7a42"

	// ProtocolVersion is the version of the contract, choria.provisioner.helper.v1.
	ProtocolVersion = 1
)

// MaxMessageSize is the largest message in bytes, either way. Both sides check
// it before they send.
const MaxMessageSize = 4 << 20

// Handshake is the handshake for go-plugin, on either side.
func Handshake() plugin.HandshakeConfig {
	return plugin.HandshakeConfig{
		ProtocolVersion:  ProtocolVersion,
		MagicCookieKey:   MagicCookieKey,
		MagicCookieValue: MagicCookieValue,
	}
}

// HandshakeEnv are the environment variables by which the host speaks to a
// helper while it starts. A helper that starts programs keeps these from them.
func HandshakeEnv() []string {
	return []string{
		MagicCookieKey,
		"PLUGIN_CLIENT_CERT",
		"PLUGIN_MAX_PORT",
		"PLUGIN_MIN_PORT",
		"PLUGIN_MULTIPLEX_GRPC",
		"PLUGIN_PROTOCOL_VERSIONS",
		plugin.EnvUnixSocketDir,
		plugin.EnvUnixSocketGroup,
	}
}
