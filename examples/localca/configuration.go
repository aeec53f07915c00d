package main

import (
	"maps"
	"path"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// config is the helper's configuration.
type config struct {
	// Dir holds what the authority makes; the default is localca in the working
	// directory.
	Dir string `json:"dir"`
	// CACert and CAKey are the PEM files of an authority that exists; without
	// them one is made in Dir at the first start.
	CACert string `json:"ca_cert"`
	CAKey  string `json:"ca_key"`
	// Validity of a certificate, as Go writes durations; 8760h, a year.
	Validity string `json:"validity"`

	// Brokers are host:port, for the nodes.
	Brokers []string `json:"brokers"`
	// Collectives that nodes join, the first is the main one; mcollective.
	Collectives []string `json:"collectives"`
	// Issuer is the hex public key of the organization issuer (ed25519).
	Issuer string `json:"issuer"`
	// Configuration is added to every node's, and wins.
	Configuration map[string]string `json:"configuration"`

	validity time.Duration
}

// schema describes config to the host.
const schema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "dir": {"type": "string"},
    "ca_cert": {"type": "string"},
    "ca_key": {"type": "string"},
    "validity": {"type": "string"},
    "brokers": {"type": "array", "items": {"type": "string"}},
    "collectives": {"type": "array", "items": {"type": "string"}},
    "issuer": {"type": "string"},
    "configuration": {"type": "object", "additionalProperties": {"type": "string"}}
  }
}`

func readConfig(in *structpb.Struct) (cfg config, warnings []string, err error) {
	cfg = config{Dir: "localca", Validity: "8760h", Collectives: []string{"mcollective"}}
	if err := helper.DecodeConfig(in, &cfg); err != nil {
		return cfg, nil, err
	}

	cfg.validity, err = time.ParseDuration(cfg.Validity)
	switch {
	case err != nil || cfg.validity <= 0:
		return cfg, nil, status.Errorf(codes.InvalidArgument, "validity %q is not a duration like 8760h", cfg.Validity)
	case (cfg.CACert == "") != (cfg.CAKey == ""):
		return cfg, nil, status.Error(codes.InvalidArgument, "ca_cert and ca_key go together")
	case len(cfg.Collectives) == 0:
		return cfg, nil, status.Error(codes.InvalidArgument, "collectives is empty")
	}
	if len(cfg.Brokers) == 0 {
		warnings = append(warnings, "brokers is not set: nodes will look for theirs in DNS")
	}

	return cfg, warnings, nil
}

// configuration is what a node gets.
func (s *site) configuration(node *helperv1.Node) map[string]string {
	c := map[string]string{
		"identity":                       node.GetIdentity(),
		"collectives":                    strings.Join(s.cfg.Collectives, ","),
		"main_collective":                s.cfg.Collectives[0],
		"loglevel":                       "info",
		"registerinterval":               "300",
		"plugin.choria.server.provision": "false",
	}
	if len(s.cfg.Brokers) > 0 {
		c["plugin.choria.middleware_hosts"] = strings.Join(s.cfg.Brokers, ",")
	}

	// The agent writes these files next to the key it made.
	if csr := node.GetCsr(); csr != nil {
		c["plugin.security.provider"] = "file"
		c["plugin.security.file.certificate"] = path.Join(csr.GetSsldir(), "certificate.pem")
		c["plugin.security.file.key"] = path.Join(csr.GetSsldir(), "private.pem")
		c["plugin.security.file.ca"] = path.Join(csr.GetSsldir(), "ca.pem")
	}
	if key := node.GetEd25519(); key != nil {
		c["plugin.security.provider"] = "choria"
		c["plugin.security.choria.token_file"] = path.Join(key.GetDirectory(), "server.jwt")
		c["plugin.security.choria.seed_file"] = path.Join(key.GetDirectory(), "server.seed")
		if s.cfg.Issuer != "" {
			c["plugin.security.issuer.names"] = "choria"
			c["plugin.security.issuer.choria.public"] = s.cfg.Issuer
		}
	}
	maps.Copy(c, s.cfg.Configuration)

	return c
}

// claims are those of the node's server token.
func (s *site) claims() *helperv1.ServerClaims {
	return &helperv1.ServerClaims{
		Ou:              "choria",
		Collectives:     s.cfg.Collectives,
		PermissionsJson: []byte(`{"streams":true,"submission":true}`),
	}
}
