package config

import (
	"encoding/json"
	"net/url"
	"strings"
)

// masked stands for a secret.
const masked = "***"

// MarshalJSON is the effective configuration under the names of the file, so
// that it is a configuration file itself: durations as Go prints them, and ***
// for what is a secret or may hold one.
func (c Config) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Workers                        int               `json:"workers"`
		Interval                       string            `json:"interval"`
		LogFile                        string            `json:"logfile"`
		LogLevel                       string            `json:"loglevel"`
		Helper                         any               `json:"helper"`
		Token                          string            `json:"token"`
		TokenFile                      string            `json:"token_file"`
		LifecycleComponent             string            `json:"lifecycle_component"`
		Insecure                       bool              `json:"choria_insecure"`
		Site                           string            `json:"site"`
		MonitorPort                    int               `json:"monitor_port"`
		MonitorAddress                 string            `json:"monitor_address"`
		BrokerProvisioningPassword     string            `json:"broker_provisioning_password"`
		BrokerProvisioningPasswordFile string            `json:"broker_provisioning_password_file"`
		CertDenyList                   []string          `json:"cert_deny_list"`
		JWTVerifyCert                  string            `json:"jwt_verify_cert"`
		JWTSigningKey                  string            `json:"jwt_signing_key"`
		JWTSigningToken                string            `json:"jwt_signing_token"`
		ServerJWTValidity              string            `json:"server_jwt_validity"`
		LeaderElection                 bool              `json:"leader_election"`
		UpgradesRepository             string            `json:"upgrades_repository"`
		UpgradesOptional               bool              `json:"upgrades_optional"`
		Features                       Features          `json:"features"`
		StateDir                       string            `json:"state_dir"`
		State                          *effectiveState   `json:"state,omitempty"`
		Versions                       effectiveVersions `json:"versions"`
	}{
		Workers:                        c.Workers,
		Interval:                       c.Interval.String(),
		LogFile:                        c.LogFile,
		LogLevel:                       c.LogLevel,
		Helper:                         c.Helper.effective(),
		Token:                          mask(c.Token),
		TokenFile:                      c.TokenFile,
		LifecycleComponent:             c.LifecycleComponent,
		Insecure:                       c.Insecure,
		Site:                           c.Site,
		MonitorPort:                    c.MonitorPort,
		MonitorAddress:                 c.MonitorAddress,
		BrokerProvisioningPassword:     mask(c.BrokerProvisioningPassword),
		BrokerProvisioningPasswordFile: c.BrokerProvisioningPasswordFile,
		CertDenyList:                   c.denyPatterns(),
		JWTVerifyCert:                  c.JWTVerifyCert,
		JWTSigningKey:                  c.JWTSigningKey,
		JWTSigningToken:                c.JWTSigningToken,
		ServerJWTValidity:              c.ServerJWTValidity.String(),
		LeaderElection:                 c.LeaderElection,
		UpgradesRepository:             maskUserinfo(c.UpgradesRepository),
		UpgradesOptional:               c.UpgradesOptional,
		Features:                       c.Features,
		StateDir:                       c.StateDir,
		State:                          c.State.effective(),
		Versions: effectiveVersions{
			Trial:           c.Versions.Trial.String(),
			ReleaseTimeout:  c.Versions.ReleaseTimeout.String(),
			MaxInTrial:      c.Versions.MaxInTrial,
			MaxDark:         c.Versions.MaxDark,
			QuarantineAfter: c.Versions.QuarantineAfter,
		},
	})
}

type effectiveState struct {
	NATS effectiveStateNATS `json:"nats"`
}

type effectiveStateNATS struct {
	Servers   []string `json:"servers"`
	TokenFile string   `json:"token_file"`
	SeedFile  string   `json:"seed_file"`
	Bucket    string   `json:"bucket"`
	Replicas  int      `json:"replicas"`
}

type effectiveVersions struct {
	Trial           string `json:"trial"`
	ReleaseTimeout  string `json:"release_timeout"`
	MaxInTrial      int    `json:"max_in_trial"`
	MaxDark         int    `json:"max_dark"`
	QuarantineAfter int    `json:"quarantine_after"`
}

type effectivePlugin struct {
	Plugin       string            `json:"plugin"`
	Args         []string          `json:"args,omitempty"`
	SHA256       string            `json:"sha256"`
	Env          map[string]string `json:"env,omitempty"`
	Timeout      string            `json:"timeout"`
	StartTimeout string            `json:"start_timeout"`
	MaxInFlight  int               `json:"max_in_flight"`
	MTLS         string            `json:"mtls"`
	Config       map[string]string `json:"config,omitempty"`
}

// effective is the command line of an exec helper, or the map of a plugin.
func (h Helper) effective() any {
	if h.Plugin == "" {
		return h.CommandLine
	}

	env := map[string]string{}
	for name := range h.Env {
		env[name] = masked
	}

	// Which of its keys are secrets only the plugin knows.
	config := map[string]string{}
	var raw map[string]json.RawMessage
	if json.Unmarshal(h.Config, &raw) == nil {
		for key := range raw {
			config[key] = masked
		}
	}

	return effectivePlugin{
		Plugin:       h.Plugin,
		Args:         h.Args,
		SHA256:       h.SHA256,
		Env:          env,
		Timeout:      h.Timeout.String(),
		StartTimeout: h.StartTimeout.String(),
		MaxInFlight:  h.MaxInFlight,
		MTLS:         h.MTLS,
		Config:       config,
	}
}

// effective is nil without servers: an empty map would be refused in a file.
func (s State) effective() *effectiveState {
	if len(s.NATS.Servers) == 0 {
		return nil
	}

	servers := make([]string, len(s.NATS.Servers))
	for i, server := range s.NATS.Servers {
		servers[i] = maskUserinfo(server)
	}

	return &effectiveState{NATS: effectiveStateNATS{
		Servers:   servers,
		TokenFile: s.NATS.TokenFile,
		SeedFile:  s.NATS.SeedFile,
		Bucket:    s.NATS.Bucket,
		Replicas:  s.NATS.Replicas,
	}}
}

// denyPatterns are the patterns as a file would hold them.
func (c Config) denyPatterns() []string {
	patterns := make([]string, len(c.CertDenyList))
	for i, re := range c.CertDenyList {
		pattern := strings.TrimPrefix(re.String(), ignoreCase)
		if stripSlashes(pattern) != pattern {
			// Its slashes are meant, and would be taken off again.
			pattern = "/" + pattern + "/"
		}
		patterns[i] = pattern
	}
	return patterns
}

func mask(secret string) string {
	if secret == "" {
		return ""
	}
	return masked
}

// maskUserinfo hides the user and password of a URL.
func maskUserinfo(s string) string {
	scheme, rest, found := strings.Cut(s, "://")
	if !found {
		scheme, rest = "", s
	}
	host := rest
	// A password may hold what ends a host: such an address is none, and all
	// before its last @ may be secret.
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		if _, err := url.Parse("x://" + rest); err == nil {
			host = rest[:i]
		}
	}
	at := strings.LastIndex(host, "@")
	if at < 0 {
		return s
	}
	if found {
		scheme += "://"
	}
	return scheme + masked + rest[at:]
}
