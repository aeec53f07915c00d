package config

import (
	"encoding/hex"
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/kballard/go-shellquote"
	"github.com/sirupsen/logrus"
)

// defaultWorkers is a fixed number and not one of the machine: a worker mostly
// waits, for a node (22 s where none answers) or a helper, and a few slow ones
// must not hold the others up. The older default, one for each core, was
// chosen for scripts that need a core each.
const defaultWorkers = 32

// What more would overflow, and means nothing: 8 nodes for each worker wait
// outside, and two intervals are a time too.
const (
	maxWorkers  = 10_000
	maxInterval = 365 * 24 * time.Hour
)

// defaultComponent is what a go-choria server in provisioning mode calls itself
// in its lifecycle events.
const defaultComponent = "provision_mode_server"

// defaultLevel is used for a missing level, as go-choria does.
const defaultLevel = logrus.WarnLevel

// defaults is a document that no key has changed yet.
func defaults() *document {
	return &document{
		Config: Config{
			Workers:            defaultWorkers,
			LifecycleComponent: defaultComponent,
			StateDir:           "/var/lib/choria-provisioner",
			Helper:             Helper{MaxInFlight: 64, MTLS: "auto"},
			State:              State{NATS: StateNATS{Bucket: "CHORIA_PROVISIONER", Replicas: 1}},
		},
		interval:          "1m",
		serverJWTValidity: "1y",
		helperTimeout:     "10s",
		startTimeout:      "10s",
		trial:             "10m",
		releaseTimeout:    "10m",
	}
}

// defaultDenyList are the names that Choria reserves for people, as the older
// provisioner refused them.
func defaultDenyList() []string {
	return []string{`\.privileged.mcollective$`, `\.privileged.choria$`, `\.mcollective$`, `\.choria$`}
}

// validate applies every rule that needs no more than the file, and sets what
// the document holds as text.
func (d *decoder) validate(doc *document) {
	c := &doc.Config

	d.validateWork(doc)
	d.validateLog(c)
	d.validateHelper(doc)
	d.validateNetwork(c)
	d.validateFeatures(doc)
	d.validateState(doc)
}

func (d *decoder) validateWork(doc *document) {
	c := &doc.Config

	switch {
	case c.Workers < 0:
		d.fail("workers", "%d is negative: use 0 for the default of %d", c.Workers, defaultWorkers)
	case c.Workers > maxWorkers:
		d.fail("workers", "%d are too many: use %d or less", c.Workers, maxWorkers)
	case c.Workers == 0:
		c.Workers = defaultWorkers
	}

	c.Interval = d.positive("interval", doc.interval)
	switch {
	case c.Interval > maxInterval:
		d.fail("interval", "%s is too long: use 1y or less", c.Interval)
	case c.Interval > 0 && c.Interval < time.Minute:
		d.fail("interval", "%s is too short: use 1m or more", c.Interval)
	}
}

func (d *decoder) validateLog(c *Config) {
	if c.LogLevel == "" {
		c.LogLevel = defaultLevel.String()
	}
	// A warning, for the older provisioner ran with any word here.
	if _, err := logrus.ParseLevel(c.LogLevel); err != nil {
		d.warn("loglevel", "%q is no level, %s is used: use debug, info, warn or error", c.LogLevel, defaultLevel)
		c.LogLevel = defaultLevel.String()
	}
}

func (d *decoder) validateHelper(doc *document) {
	h := &doc.Helper

	h.Timeout = d.positive("helper.timeout", doc.helperTimeout)
	h.StartTimeout = d.positive("helper.start_timeout", doc.startTimeout)

	if !doc.helperIsMap {
		h.Plugin = ""
		words, err := shellquote.Split(h.CommandLine)
		if err != nil {
			d.fail("helper", "is not a command line, a quote or backslash is left open: quote it as for a shell")
		}
		if len(words) > 0 {
			h.Command = words
		}
		return
	}

	h.CommandLine = ""
	if h.Plugin == "" && !d.refused("helper.plugin") {
		d.fail("helper", "has no plugin: name the path of one; an exec helper is a string, not a map")
	}
	if h.SHA256 != "" {
		if sum, err := hex.DecodeString(h.SHA256); err != nil || len(sum) != 32 {
			d.fail("helper.sha256", "must be 64 hexadecimal digits, as sha256sum prints them")
		}
		h.SHA256 = strings.ToLower(h.SHA256)
	}
	for _, name := range slices.Sorted(maps.Keys(h.Env)) {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			d.fail("helper.env", "%q cannot be the name of an environment variable", name)
		}
	}
	if h.MaxInFlight < 1 {
		d.fail("helper.max_in_flight", "%d is too few: use 1 or more", h.MaxInFlight)
	}
	if h.MTLS != "auto" && h.MTLS != "off" {
		d.fail("helper.mtls", "%q is neither auto nor off", h.MTLS)
	}
}

func (d *decoder) validateNetwork(c *Config) {
	if c.LifecycleComponent == "" {
		c.LifecycleComponent = defaultComponent
	}
	// It becomes one token of a NATS subject.
	if strings.ContainsAny(c.LifecycleComponent, ".>*") || strings.ContainsFunc(c.LifecycleComponent, unicode.IsSpace) {
		d.fail("lifecycle_component", "%q must be one word without '.', '>' and '*': it is part of a NATS subject", c.LifecycleComponent)
	}

	if c.MonitorPort < 0 || c.MonitorPort > 65535 {
		d.fail("monitor_port", "%d is no port: use 1 to 65535, or 0 for none", c.MonitorPort)
	}
	if a := c.MonitorAddress; a != "" && net.ParseIP(a) == nil && strings.ContainsAny(a, ":/[] \t\r\n") {
		d.fail("monitor_address", "%q must be an IP address or a host name, the port is set by monitor_port", a)
	}

	d.exclusive("token", c.Token, "token_file", c.TokenFile)
	d.exclusive("broker_provisioning_password", c.BrokerProvisioningPassword, "broker_provisioning_password_file", c.BrokerProvisioningPasswordFile)

	switch {
	case d.has("leader_election_name") && !c.LeaderElection:
		d.warn("leader_election_name", "does nothing any more, NOBODY IS ELECTED BY IT: several provisioners would all work at once and provision the same nodes; set leader_election: true and remove this key")
	case d.has("leader_election_name"):
		d.warn("leader_election_name", "does nothing any more: remove it, leader_election is enough")
	}
	if d.has("broker_port") {
		d.warn("broker_port", "does nothing any more, there is no broker inside: remove it")
	}
	if d.has("rego_policy") {
		d.warn("rego_policy", "does nothing: remove it")
	}
}

func (d *decoder) validateFeatures(doc *document) {
	c := &doc.Config

	c.CertDenyList = d.denyList(doc.certDenyList)
	c.ServerJWTValidity = d.positive("server_jwt_validity", doc.serverJWTValidity)

	if c.Features.PKI && c.Features.ED25519 {
		d.fail("features.ed25519", "cannot be on together with features.pki: turn one of them off")
	}
	if c.Features.ED25519 {
		c.Features.JWT = true
	}

	if u := c.UpgradesRepository; u != "" {
		if parsed, err := url.Parse(u); err != nil || parsed.Host == "" || (parsed.Scheme != "http" && parsed.Scheme != "https") {
			d.warn("upgrades_repository", "is no http or https URL: nodes cannot download from it")
		}
	} else if c.Features.Upgrades {
		d.warn("features.upgrades", "is on without upgrades_repository: no node can be upgraded")
	}
}

// denyList compiles the patterns of the file, or the default ones.
func (d *decoder) denyList(patterns []string) []*regexp.Regexp {
	var list []*regexp.Regexp
	if len(patterns) == 0 {
		for _, pattern := range defaultDenyList() {
			list = append(list, regexp.MustCompile(ignoreCase+pattern))
		}
		return list
	}

	for i, pattern := range patterns {
		if !d.has(itemKey("cert_deny_list", i)) {
			continue // No string, as was said.
		}
		line := d.lines[itemKey("cert_deny_list", i)]

		re, err := compileDeny(pattern)
		if err != nil {
			d.add(Error, line, "cert_deny_list", "item %d is not a regular expression: %v", i+1, err)
			continue
		}
		if stripSlashes(pattern) == "" {
			d.add(Warning, line, "cert_deny_list", "item %d is empty and denies every name", i+1)
		}
		list = append(list, re)
	}

	return list
}

// compileDeny compiles a pattern to ignore case.
func compileDeny(pattern string) (*regexp.Regexp, error) {
	pattern = stripSlashes(pattern)
	// First as it stands, for an error that shows what the file says.
	if _, err := regexp.Compile(pattern); err != nil {
		return nil, err
	}
	return regexp.Compile(ignoreCase + pattern)
}

// stripSlashes takes off the slashes that may stand around a pattern.
func stripSlashes(pattern string) string {
	if len(pattern) > 1 && strings.HasPrefix(pattern, "/") && strings.HasSuffix(pattern, "/") {
		return pattern[1 : len(pattern)-1]
	}
	return pattern
}

// ignoreCase starts every pattern of the deny list.
const ignoreCase = "(?i)"

// lookAgain is how long after a discovery a node may be left alone that was found
// by it (package fleet), and its pass may take.
const lookAgain = 2 * time.Minute

func (d *decoder) validateState(doc *document) {
	c := &doc.Config

	if c.StateDir == "" {
		d.fail("state_dir", "must not be empty")
	}

	if d.has("state.nats") && !d.refused("state.nats") {
		d.validateStateNATS(c.State.NATS)
	}

	v := &c.Versions
	v.Trial = d.positive("versions.trial", doc.trial)
	v.ReleaseTimeout = d.positive("versions.release_timeout", doc.releaseTimeout)
	if shortest := c.Interval + lookAgain; c.Features.Upgrades && v.Trial < shortest && !d.refused("interval") && !d.refused("versions.trial") {
		d.warn("versions.trial", "%s is less than interval and %s: a node that refuses its configuration, or waits for one again, is looked at too late to leave its version: use %s or more", v.Trial, lookAgain, shortest)
	}
	d.notNegative("versions.max_in_trial", v.MaxInTrial)
	d.notNegative("versions.max_dark", v.MaxDark)
	d.notNegative("versions.quarantine_after", v.QuarantineAfter)
}

func (d *decoder) validateStateNATS(n StateNATS) {
	if len(n.Servers) == 0 && !d.refused("state.nats.servers") {
		d.fail("state.nats", "has no servers: list those of the main account, such as nats://broker.example.net:4222")
	}
	for i, server := range n.Servers {
		if d.has(itemKey("state.nats.servers", i)) && strings.TrimSpace(server) == "" {
			d.add(Error, d.lines[itemKey("state.nats.servers", i)], "state.nats.servers", "item %d is empty", i+1)
		}
	}
	if (n.TokenFile == "") != (n.SeedFile == "") {
		d.fail("state.nats", "has only one of token_file and seed_file: a token is proved by its seed, name both")
	}
	if !regexp.MustCompile(`^[a-zA-Z0-9_-]+$`).MatchString(n.Bucket) {
		d.fail("state.nats.bucket", "%q is no bucket name: use letters, digits, - and _", n.Bucket)
	}
	if n.Replicas < 1 || n.Replicas > 5 {
		d.fail("state.nats.replicas", "%d is out of range: use 1 to 5", n.Replicas)
	}
}

// positive reads a duration that must be more than nothing; it is 0 when the
// value was refused.
func (d *decoder) positive(key, s string) time.Duration {
	duration, err := parseDuration(s)
	switch {
	case err != nil:
		d.fail(key, "%q is no duration: use for example 30s, 5m, 1h30m, 1d or 1y", s)
		return 0
	case duration <= 0:
		d.fail(key, "%q is not more than zero", s)
		return 0
	default:
		return duration
	}
}

// notNegative refuses a limit below 0, which is none.
func (d *decoder) notNegative(key string, n int) {
	if n < 0 {
		d.fail(key, "%d is negative: use 0 for no limit", n)
	}
}

// exclusive refuses a secret that is given both in the file and beside it.
func (d *decoder) exclusive(key, secret, fileKey, file string) {
	if secret != "" && file != "" {
		d.fail(fileKey, "cannot be set together with %s: remove one", key)
	}
}
