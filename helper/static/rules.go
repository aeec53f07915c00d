package static

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// rule decides for the nodes that it matches. One of answer, deferral and
// shutdown is set.
type rule struct {
	name     string
	match    match
	answer   *answer
	deferral *deferral
	shutdown *text
}

// answer is a Configure of the contract before its templates are filled in.
type answer struct {
	configuration  map[string]*text
	actionPolicies map[string]string
	opaPolicies    map[string]string
	ssldir         *text
	claims         *claims
}

type claims struct {
	ou          *text
	collectives []*text
	pubSubjects []*text
	permissions []byte
}

type deferral struct {
	reason     *text
	retryAfter time.Duration
}

// The configuration. Defaults lie beneath the configure of every rule, key by
// key.
type (
	ruleConfig struct {
		Name      string           `json:"name"`
		Match     json.RawMessage  `json:"match"`
		Configure *configureConfig `json:"configure"`
		Defer     *deferConfig     `json:"defer"`
		Shutdown  *shutdownConfig  `json:"shutdown"`
	}

	configureConfig struct {
		Configuration  map[string]any    `json:"configuration"`
		ActionPolicies map[string]string `json:"action_policies"`
		OPAPolicies    map[string]string `json:"opa_policies"`
		SSLDir         string            `json:"ssldir"`
		ServerClaims   *claimsConfig     `json:"server_claims"`
	}

	claimsConfig struct {
		OU          string          `json:"ou"`
		Collectives []string        `json:"collectives"`
		PubSubjects []string        `json:"pub_subjects"`
		Permissions map[string]bool `json:"permissions"`
	}

	deferConfig struct {
		Reason     string `json:"reason"`
		RetryAfter string `json:"retry_after"`
	}

	shutdownConfig struct {
		Reason string `json:"reason"`
	}
)

// readRules reads the configuration. An error is a status with all that is
// wrong, each with its rule and key.
func readRules(config *structpb.Struct) ([]*rule, error) {
	var in struct {
		Defaults json.RawMessage   `json:"defaults"`
		Rules    []json.RawMessage `json:"rules"`
	}
	if err := helper.DecodeConfig(config, &in); err != nil {
		return nil, err
	}

	var errs []error
	var defaults configureConfig
	if err := decode(in.Defaults, &defaults); err != nil {
		errs = append(errs, fmt.Errorf("defaults: %w", err))
	}
	if len(in.Rules) == 0 {
		errs = append(errs, errors.New("rules: there are none, so no node could be configured"))
	}

	var rules []*rule
	for i, text := range in.Rules {
		r, err := readRule(text, &defaults)
		if err == nil {
			err = r.isReached(rules)
			rules = append(rules, r)
		}
		errs = append(errs, prefix(fmt.Sprintf("rule %d", i+1)+quoted(r.name)+": ", err))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}

	return rules, nil
}

// prefix puts a text before each line of an error.
func prefix(text string, err error) error {
	if err == nil {
		return nil
	}

	return errors.New(text + strings.ReplaceAll(err.Error(), "\n", "\n"+text))
}

func quoted(name string) string {
	if name == "" {
		return ""
	}

	return fmt.Sprintf(" %q", name)
}

// decode reads JSON strictly; nothing is no error.
func decode(text json.RawMessage, into any) error {
	if len(text) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	var wrong *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &wrong) && wrong.Field != "":
		return fmt.Errorf("%s: it is of type %s, which does not belong there", wrong.Field, wrong.Value)
	case errors.As(err, &wrong):
		return fmt.Errorf("it is of type %s, not object", wrong.Value)
	}

	return errors.New(strings.Replace(strings.TrimPrefix(err.Error(), "json: "), "unknown field", "unknown key", 1))
}

// readRule reads one rule. The rule is never nil: its name belongs into errors.
func readRule(text json.RawMessage, defaults *configureConfig) (*rule, error) {
	var in ruleConfig
	if err := decode(text, &in); err != nil {
		// The name may stand in a rule that is else not understood.
		_ = json.Unmarshal(text, &struct {
			Name *string `json:"name"`
		}{&in.Name})
		return &rule{name: in.Name}, err
	}

	r := &rule{name: in.Name}
	var errs [3]error
	if in.Name == "" {
		errs[0] = errors.New("name: is not set")
	}
	r.match, errs[1] = readMatch(in.Match)

	outcomes := 0
	for _, is := range []bool{in.Configure != nil, in.Defer != nil, in.Shutdown != nil} {
		if is {
			outcomes++
		}
	}
	switch {
	case outcomes != 1:
		errs[2] = errors.New("one of configure, defer and shutdown must be set; {} takes what it takes by default")
	case in.Configure != nil:
		r.answer, errs[2] = in.Configure.over(defaults).compile()
	case in.Defer != nil:
		r.deferral, errs[2] = in.Defer.compile()
	default:
		r.shutdown, errs[2] = parseValue("shutdown: reason", in.Shutdown.Reason)
	}

	return r, errors.Join(errs[:]...)
}

// isReached finds a rule before this one that leaves it no node, or has its name.
func (r *rule) isReached(before []*rule) error {
	for _, b := range before {
		switch {
		case b.name == r.name:
			return errors.New("name: another rule has it")
		case b.match.covers(r.match):
			return fmt.Errorf("match: rule %q before it matches every node that this one does", b.name)
		}
	}

	return nil
}

// over lays a configuration over the defaults.
func (c *configureConfig) over(defaults *configureConfig) *configureConfig {
	all := &configureConfig{
		Configuration:  merged(defaults.Configuration, c.Configuration),
		ActionPolicies: merged(defaults.ActionPolicies, c.ActionPolicies),
		OPAPolicies:    merged(defaults.OPAPolicies, c.OPAPolicies),
		SSLDir:         either(c.SSLDir, defaults.SSLDir),
		ServerClaims:   c.ServerClaims,
	}
	if all.ServerClaims == nil {
		all.ServerClaims = defaults.ServerClaims
	}

	return all
}

func merged[V any](below, above map[string]V) map[string]V {
	m := maps.Clone(below)
	if m == nil {
		return above
	}
	maps.Copy(m, above)

	return m
}

func either(a, b string) string {
	if a != "" {
		return a
	}

	return b
}

func (c *configureConfig) compile() (*answer, error) {
	a := &answer{configuration: map[string]*text{}, actionPolicies: c.ActionPolicies, opaPolicies: c.OPAPolicies}
	var errs []error
	for _, k := range slices.Sorted(maps.Keys(c.Configuration)) {
		what := fmt.Sprintf("configuration %q", k)
		value, err := scalar(c.Configuration[k])
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
			continue
		}
		t, err := parseValue(what, value)
		a.configuration[k], errs = t, append(errs, err)
	}

	var err error
	a.ssldir, err = parseValue("ssldir", c.SSLDir)
	errs = append(errs, err)
	if c.ServerClaims != nil {
		a.claims, err = c.ServerClaims.compile()
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}

	return a, a.checkFixed()
}

// checkFixed finds at the start what does not depend on a node: a value with a
// template stands for any.
func (a *answer) checkFixed() error {
	c := &helperv1.Configure{Configuration: map[string]string{}, ActionPolicies: a.actionPolicies, OpaPolicies: a.opaPolicies}
	for k, t := range a.configuration {
		c.Configuration[k] = t.fixed
	}

	return helper.CheckAnswer(helper.ConfigureWith(c))
}

func (c *claimsConfig) compile() (*claims, error) {
	var errs []error
	one := func(key, value string) *text {
		t, err := parseValue("server_claims: "+key, value)
		errs = append(errs, err)
		return t
	}
	list := func(key string, values []string) (texts []*text) {
		for _, v := range values {
			texts = append(texts, one(key, v))
		}
		return texts
	}

	all := &claims{ou: one("ou", c.OU), collectives: list("collectives", c.Collectives), pubSubjects: list("pub_subjects", c.PubSubjects)}
	if len(c.Permissions) > 0 {
		var err error
		all.permissions, err = json.Marshal(c.Permissions)
		errs = append(errs, err)
	}

	return all, errors.Join(errs...)
}

func (c *deferConfig) compile() (*deferral, error) {
	d := &deferral{}
	var errs [2]error
	d.reason, errs[0] = parseValue("defer: reason", c.Reason)
	if c.RetryAfter != "" {
		d.retryAfter, errs[1] = time.ParseDuration(c.RetryAfter)
		if errs[1] != nil || d.retryAfter <= 0 {
			errs[1] = fmt.Errorf("defer: retry_after: %q is no time from now, like 90s or 10m", c.RetryAfter)
		}
	}

	return d, errors.Join(errs[:]...)
}

// parseValue reads a value and names its key in the error.
func parseValue(key, value string) (*text, error) {
	t, err := parseText(value)
	if err != nil {
		return nil, prefix(key+": ", err)
	}

	return t, nil
}

// decide answers for a node. An error names the key.
func (r *rule) decide(n node) (*helperv1.ConfigureNodeResponse, error) {
	switch {
	case r.deferral != nil:
		reason, err := render("defer: reason", r.deferral.reason, n)
		return helper.Defer(reason, r.deferral.retryAfter), err
	case r.shutdown != nil:
		reason, err := render("shutdown: reason", r.shutdown, n)
		return helper.Shutdown(reason), err
	}

	c, err := r.answer.fill(n)
	if err != nil {
		return nil, err
	}
	c.Reason = "rule " + r.name
	answer := helper.ConfigureWith(c)

	return answer, helper.CheckAnswer(answer)
}

// fill fills in the templates.
func (a *answer) fill(n node) (*helperv1.Configure, error) {
	c := &helperv1.Configure{Configuration: make(map[string]string, len(a.configuration)), ActionPolicies: a.actionPolicies, OpaPolicies: a.opaPolicies}
	var errs []error
	one := func(key string, t *text) string {
		value, err := render(key, t, n)
		errs = append(errs, err)
		return value
	}
	list := func(key string, texts []*text) (values []string) {
		for _, t := range texts {
			values = append(values, one(key, t))
		}
		return values
	}

	for _, k := range slices.Sorted(maps.Keys(a.configuration)) {
		c.Configuration[k] = one(fmt.Sprintf("configuration %q", k), a.configuration[k])
	}
	c.Ssldir = one("ssldir", a.ssldir)
	if a.claims != nil {
		c.ServerClaims = &helperv1.ServerClaims{
			Ou:              one("server_claims: ou", a.claims.ou),
			Collectives:     list("server_claims: collectives", a.claims.collectives),
			PubSubjects:     list("server_claims: pub_subjects", a.claims.pubSubjects),
			PermissionsJson: a.claims.permissions,
		}
	}

	return c, errors.Join(errs...)
}

func render(key string, t *text, n node) (string, error) {
	value, err := t.render(n)
	if err != nil {
		return "", fmt.Errorf("%s: %w", key, err)
	}

	return value, nil
}
