// Package config reads the configuration of the provisioner.
package config

import (
	"encoding/json"
	"regexp"
	"time"
)

// Config is a validated configuration. It is read once and never changed.
type Config struct {
	// Workers is how many nodes are provisioned at once; never below 1.
	Workers int
	// Interval is the time between two discoveries; at least one minute.
	Interval time.Duration

	// LogFile is a path, or one of stdout, stderr and discard; empty is stderr.
	// Lines are appended.
	LogFile string
	// LogLevel is a logrus level; never empty.
	LogLevel string

	// Helper is the site's helper, a plugin or an exec helper.
	Helper Helper

	// Token is sent with every action; it may be empty. TokenFile names a file
	// that holds it instead.
	Token     string
	TokenFile string

	// LifecycleComponent is the component whose startup events announce nodes.
	LifecycleComponent string
	// Insecure turns TLS and the signing of the protocol off.
	Insecure bool
	// Site is a label on every metric; it may be empty.
	Site string

	// MonitorPort is where metrics are served, 0 is nowhere; MonitorAddress is
	// the address, empty is all interfaces.
	MonitorPort    int
	MonitorAddress string

	// BrokerProvisioningPassword makes the daemon connect as user provisioner;
	// BrokerProvisioningPasswordFile names a file that holds it instead.
	BrokerProvisioningPassword     string
	BrokerProvisioningPasswordFile string

	// CertDenyList are patterns, compiled to ignore case, that no name in a CSR
	// may match; never empty.
	CertDenyList []*regexp.Regexp

	// JWTVerifyCert is a file, or where no such file exists a hex ed25519 public
	// key.
	JWTVerifyCert string
	// JWTSigningKey and JWTSigningToken are paths, read again for every node.
	JWTSigningKey   string
	JWTSigningToken string
	// ServerJWTValidity is how long a server JWT is valid.
	ServerJWTValidity time.Duration

	// LeaderElection makes the daemon work only while it holds the lease.
	LeaderElection bool

	// UpgradesRepository is a go-updater repository URL; UpgradesOptional goes
	// on with a node whose version could not be changed.
	UpgradesRepository string
	UpgradesOptional   bool

	// StateDir holds the ledger file and its socket.
	StateDir string
	// State is where the ledger lives when it is shared.
	State State
	// Versions are the budgets of version changes.
	Versions Versions

	Features Features

	// file and lines say where a key was set, for problems found later; both
	// are empty in a Config that no file made.
	file  string
	lines map[string]int
}

// Features are the parts of the sequence that are on.
type Features struct {
	PKI      bool `json:"pki"`
	JWT      bool `json:"jwt"`
	ED25519  bool `json:"ed25519"`
	Upgrades bool `json:"upgrades"`
}

// Helper says how the site's helper is started. Command is set for an exec
// helper, Plugin for a plugin, never both; with neither the daemon cannot run.
// The limits are set for both kinds.
type Helper struct {
	// CommandLine is an exec helper as it stands in the file, Command the same
	// split as a shell would.
	CommandLine string
	Command     []string

	// Plugin is the path of a plugin, Args its arguments.
	Plugin string
	Args   []string
	// SHA256 is the lower-case hex checksum the plugin's file must have; empty is any.
	SHA256 string
	// Env are additional environment variables of the plugin.
	Env map[string]string
	// Timeout ends a call, StartTimeout the start.
	Timeout      time.Duration
	StartTimeout time.Duration
	// MaxInFlight is how many calls run at once.
	MaxInFlight int
	// MTLS is auto or off.
	MTLS string
	// Config is the plugin's own configuration, a JSON object, or nil.
	Config json.RawMessage
}

// State is the shared store of the ledger and the view of the main account.
type State struct {
	NATS StateNATS
}

// StateNATS is a connection to the main account; without Servers there is none.
type StateNATS struct {
	Servers   []string
	TokenFile string
	SeedFile  string
	Bucket    string
	Replicas  int
}

// Versions are the budgets of version changes.
type Versions struct {
	// Trial is how long a version is watched before it counts as good.
	Trial time.Duration
	// ReleaseTimeout is how long a node that was sent a version may stay away.
	ReleaseTimeout time.Duration
	// MaxInTrial and MaxDark are limits on nodes, 0 is none.
	MaxInTrial int
	MaxDark    int
	// QuarantineAfter is after how many rolled back nodes a version is sent to
	// nobody, 0 is never.
	QuarantineAfter int
}
