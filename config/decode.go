package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
	"gopkg.in/yaml.v3"
)

// document holds what the file says, before any rule is applied: durations and
// patterns are still text.
type document struct {
	Config

	interval          string
	serverJWTValidity string
	certDenyList      []string
	helperIsMap       bool
	helperTimeout     string
	startTimeout      string
	trial             string
	releaseTimeout    string
}

// field is a key that the loader knows.
type field struct {
	key    string
	decode decodeFunc
	// fields are the keys below it.
	fields []field
}

// value is a value in the file: as JSON, and where it stands.
type value struct {
	key  string
	line int
	raw  json.RawMessage
	node *yaml.Node
}

type decodeFunc func(d *decoder, v value)

// fields is every key of the file.
func (doc *document) fields() []field {
	c := &doc.Config
	h := &c.Helper

	helper := []field{
		{key: "plugin", decode: text(&h.Plugin)},
		{key: "args", decode: texts(&h.Args)},
		{key: "sha256", decode: text(&h.SHA256)},
		{key: "env", decode: textMap(&h.Env)},
		{key: "timeout", decode: text(&doc.helperTimeout)},
		{key: "start_timeout", decode: text(&doc.startTimeout)},
		{key: "max_in_flight", decode: integer(&h.MaxInFlight)},
		{key: "mtls", decode: textOrOff(&h.MTLS)},
		{key: "config", decode: rawObject(&h.Config)},
	}

	return []field{
		{key: "workers", decode: integer(&c.Workers)},
		{key: "interval", decode: text(&doc.interval)},
		{key: "logfile", decode: text(&c.LogFile)},
		{key: "loglevel", decode: text(&c.LogLevel)},
		{key: "helper", fields: helper, decode: doc.helper(helper)},
		{key: "token", decode: text(&c.Token)},
		{key: "token_file", decode: text(&c.TokenFile)},
		{key: "lifecycle_component", decode: text(&c.LifecycleComponent)},
		{key: "choria_insecure", decode: boolean(&c.Insecure)},
		{key: "site", decode: text(&c.Site)},
		{key: "monitor_port", decode: integer(&c.MonitorPort)},
		{key: "monitor_address", decode: text(&c.MonitorAddress)},
		{key: "broker_provisioning_password", decode: text(&c.BrokerProvisioningPassword)},
		{key: "broker_provisioning_password_file", decode: text(&c.BrokerProvisioningPasswordFile)},
		{key: "cert_deny_list", decode: texts(&doc.certDenyList)},
		{key: "jwt_verify_cert", decode: text(&c.JWTVerifyCert)},
		{key: "jwt_signing_key", decode: text(&c.JWTSigningKey)},
		{key: "jwt_signing_token", decode: text(&c.JWTSigningToken)},
		{key: "server_jwt_validity", decode: text(&doc.serverJWTValidity)},
		{key: "leader_election", decode: boolean(&c.LeaderElection)},
		{key: "upgrades_repository", decode: text(&c.UpgradesRepository)},
		{key: "upgrades_optional", decode: boolean(&c.UpgradesOptional)},
		section("features",
			field{key: "pki", decode: boolean(&c.Features.PKI)},
			field{key: "jwt", decode: boolean(&c.Features.JWT)},
			field{key: "ed25519", decode: boolean(&c.Features.ED25519)},
			field{key: "upgrades", decode: boolean(&c.Features.Upgrades)}),
		{key: "state_dir", decode: text(&c.StateDir)},
		section("state", section("nats",
			field{key: "servers", decode: texts(&c.State.NATS.Servers)},
			field{key: "token_file", decode: text(&c.State.NATS.TokenFile)},
			field{key: "seed_file", decode: text(&c.State.NATS.SeedFile)},
			field{key: "bucket", decode: text(&c.State.NATS.Bucket)},
			field{key: "replicas", decode: integer(&c.State.NATS.Replicas)})),
		section("versions",
			field{key: "trial", decode: text(&doc.trial)},
			field{key: "release_timeout", decode: text(&doc.releaseTimeout)},
			field{key: "max_in_trial", decode: integer(&c.Versions.MaxInTrial)},
			field{key: "max_dark", decode: integer(&c.Versions.MaxDark)},
			field{key: "quarantine_after", decode: integer(&c.Versions.QuarantineAfter)}),

		// What older files still hold.
		{key: "leader_election_name", decode: ignore},
		{key: "broker_port", decode: ignore},
		{key: "rego_policy", decode: ignore},
	}
}

func section(key string, fields ...field) field {
	return field{key: key, fields: fields, decode: object(fields)}
}

// decoder collects problems while the file is decoded key by key, so that one
// wrong value does not hide the next.
type decoder struct {
	file     string
	problems Problems
	// lines are where the values came from, by the key's known name; a key that
	// is absent or null is not among them.
	lines map[string]int
}

func (d *decoder) add(s Severity, line int, key, format string, args ...any) {
	d.problems = append(d.problems, Problem{File: d.file, Line: line, Key: key, Message: fmt.Sprintf(format, args...), Severity: s})
}

// fail refuses the value of a known key.
func (d *decoder) fail(key, format string, args ...any) {
	d.add(Error, d.lines[key], key, format, args...)
}

// warn doubts the value of a known key.
func (d *decoder) warn(key, format string, args ...any) {
	d.add(Warning, d.lines[key], key, format, args...)
}

// has is whether the file gives the key a value.
func (d *decoder) has(key string) bool {
	_, ok := d.lines[key]
	return ok
}

// refused is whether the value of the key was refused already.
func (d *decoder) refused(key string) bool {
	return slices.ContainsFunc(d.problems, func(p Problem) bool { return p.Key == key && p.Severity == Error })
}

// object decodes a map key by key, in the order and with the folding of
// encoding/json, which the older loader used: of two spellings of one key the
// lower-case one sorts last and wins.
func object(fields []field) decodeFunc {
	return func(d *decoder, v value) {
		var raw map[string]json.RawMessage
		if json.Unmarshal(v.raw, &raw) != nil {
			d.add(Error, v.line, v.key, "must be a map of keys and values, and the file has %s", kind(v.raw))
			return
		}

		places := places(v.node)
		winner := map[string]value{}
		for _, spelled := range slices.Sorted(maps.Keys(raw)) {
			at := places[spelled]
			sub := value{key: join(v.key, spelled), line: at.line, raw: raw[spelled], node: at.value}

			i := slices.IndexFunc(fields, func(f field) bool { return strings.EqualFold(f.key, spelled) })
			if i < 0 {
				d.add(Warning, sub.line, sub.key, "unknown key, ignored%s", suggest(spelled, fields))
				continue
			}
			f := fields[i]

			if at.first > 0 {
				d.add(Warning, sub.line, sub.key, "is given twice, first on line %d, and the last one counts: remove one", at.first)
			}
			if kind(sub.raw) == "null" {
				continue
			}
			if lost, ok := winner[f.key]; ok {
				if kind(sub.raw) == "a map" {
					d.add(Warning, lost.line, lost.key, "is the same key as %s: the two are merged, and that one wins where they differ; write one", sub.key)
				} else {
					d.add(Warning, lost.line, lost.key, "is the same key as %s, which wins: remove one", sub.key)
				}
			}
			winner[f.key] = sub

			d.lines[join(v.key, f.key)] = sub.line
			sub.key = join(v.key, f.key)
			f.decode(d, sub)
		}
	}
}

// itemKey is the name under which the line of an item of a list is kept, if the
// item is a string.
func itemKey(key string, i int) string { return fmt.Sprintf("%s[%d]", key, i) }

func join(parent, key string) string {
	if parent == "" {
		return key
	}
	return parent + "." + key
}

// suggest names the known key that the unknown one is likely meant to be.
func suggest(unknown string, fields []field) string {
	unknown = strings.ToLower(unknown)

	// Two characters may be wrong, as in a swap, and three of a long key.
	nearest, distance := "", 3
	if len(unknown) > 8 {
		distance = 4
	}
	for _, f := range fields {
		if n := levenshtein.ComputeDistance(unknown, f.key); n < distance {
			nearest, distance = f.key, n
		}
	}
	if nearest == "" {
		return ": remove it"
	}
	return fmt.Sprintf(": is %s meant?", nearest)
}

// ignore takes any value of a key that means nothing here.
func ignore(*decoder, value) {}

func text(into *string) decodeFunc {
	return func(d *decoder, v value) {
		if json.Unmarshal(v.raw, into) == nil {
			return
		}
		d.add(Error, v.line, v.key, "must be a string, and the file has %s%s", kind(v.raw), quoteHint(v.raw))
	}
}

// textOrOff is text that may be the word off, which YAML 1.1 takes for a boolean.
func textOrOff(into *string) decodeFunc {
	return func(d *decoder, v value) {
		if string(v.raw) == "false" {
			*into = "off"
			return
		}
		text(into)(d, v)
	}
}

func texts(into *[]string) decodeFunc {
	return func(d *decoder, v value) {
		var raw []json.RawMessage
		if json.Unmarshal(v.raw, &raw) != nil {
			d.add(Error, v.line, v.key, "must be a list of strings, and the file has %s", kind(v.raw))
			return
		}

		items := make([]string, len(raw))
		for i, item := range raw {
			if kind(item) == "null" || json.Unmarshal(item, &items[i]) != nil {
				d.add(Error, itemLine(v.node, i), v.key, "item %d must be a string, and the file has %s%s", i+1, kind(item), quoteHint(item))
				continue
			}
			d.lines[itemKey(v.key, i)] = itemLine(v.node, i)
		}
		*into = items
	}
}

func textMap(into *map[string]string) decodeFunc {
	return func(d *decoder, v value) {
		var raw map[string]json.RawMessage
		if json.Unmarshal(v.raw, &raw) != nil {
			d.add(Error, v.line, v.key, "must be a map of strings, and the file has %s", kind(v.raw))
			return
		}

		places := places(v.node)
		items := make(map[string]string, len(raw))
		for _, name := range slices.Sorted(maps.Keys(raw)) {
			var s string
			if kind(raw[name]) == "null" || json.Unmarshal(raw[name], &s) != nil {
				d.add(Error, places[name].line, join(v.key, name), "must be a string, and the file has %s%s", kind(raw[name]), quoteHint(raw[name]))
				continue
			}
			items[name] = s
		}
		*into = items
	}
}

func integer(into *int) decodeFunc {
	return func(d *decoder, v value) {
		if json.Unmarshal(v.raw, into) == nil {
			return
		}
		d.add(Error, v.line, v.key, "must be a whole number without quotes, and the file has %s", kind(v.raw))
	}
}

func boolean(into *bool) decodeFunc {
	return func(d *decoder, v value) {
		if json.Unmarshal(v.raw, into) == nil {
			return
		}
		d.add(Error, v.line, v.key, "must be true or false without quotes, and the file has %s", kind(v.raw))
	}
}

func rawObject(into *json.RawMessage) decodeFunc {
	return func(d *decoder, v value) {
		if kind(v.raw) != "a map" {
			d.add(Error, v.line, v.key, "must be a map of keys and values, and the file has %s", kind(v.raw))
			return
		}
		*into = bytes.Clone(v.raw)
	}
}

// helper takes the command line of an exec helper, or the map of a plugin.
func (doc *document) helper(fields []field) decodeFunc {
	return func(d *decoder, v value) {
		switch kind(v.raw) {
		case "a string":
			doc.helperIsMap = false
			text(&doc.Helper.CommandLine)(d, v)
		case "a map":
			doc.helperIsMap = true
			object(fields)(d, v)
		default:
			d.add(Error, v.line, v.key, "must be a command line or a map with the key plugin, and the file has %s%s", kind(v.raw), quoteHint(v.raw))
		}
	}
}

// kind names a JSON value in the words of a YAML file.
func kind(raw json.RawMessage) string {
	switch raw[0] {
	case '{':
		return "a map"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	default:
		return "a number"
	}
}

// quoteHint says why what looks like a string is none.
func quoteHint(raw json.RawMessage) string {
	switch kind(raw) {
	case "a number":
		return ": put it in quotes"
	case "a boolean":
		return " (yes, no, on, off, y and n are booleans in YAML): put it in quotes"
	default:
		return ""
	}
}
