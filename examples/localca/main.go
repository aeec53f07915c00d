// Command localca is a helper that enrols nodes with a certificate authority of
// its own. It is an example: its key lies in a file.
//
//	helper:
//	  plugin: /usr/local/bin/localca
//	  config:
//	    dir: /var/lib/localca
//	    brokers: [broker.example.net:4222]
//
// With the pki feature it signs each node's certificate request; with ed25519
// it sets the claims of the server token that the host signs. The site's
// decisions are in configuration.go, the authority is in ca.go.
package main

import (
	"context"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

func main() {
	s := &site{}
	helper.Serve(&helper.Plugin{
		Name:          "localca",
		Build:         "1.0.0",
		ConfigSchema:  schema,
		Validate:      s.validate,
		Configure:     s.configure,
		ConfigureNode: s.configureNode,
	})
}

// site is the helper once it is configured.
type site struct {
	cfg config
	ca  *authority
}

func (s *site) validate(_ context.Context, in *structpb.Struct) ([]string, error) {
	_, warnings, err := readConfig(in)
	return warnings, err
}

// configure is called once, before any node.
func (s *site) configure(_ context.Context, in *structpb.Struct) error {
	cfg, _, err := readConfig(in)
	if err != nil {
		return err
	}
	ca, err := openAuthority(cfg)
	if err != nil {
		return status.Errorf(codes.FailedPrecondition, "certificate authority: %v", err)
	}
	s.cfg, s.ca = cfg, ca

	return nil
}

func (s *site) configureNode(ctx context.Context, req *helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error) {
	node := req.GetNode()
	answer := &helperv1.Configure{Configuration: s.configuration(node), Reason: "enrolled by localca"}

	if csr := node.GetCsr(); csr != nil {
		request, err := parseCSR(csr.GetCsrPem(), node.GetIdentity())
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "certificate request: %v", err)
		}
		certificate, err := s.ca.sign(req.GetRequestId(), request)
		if err != nil {
			// It may pass, a full disk say: the host defers the node and asks again.
			return nil, status.Errorf(codes.Unavailable, "certificate authority: %v", err)
		}
		answer.CertificatePem, answer.CaPem, answer.Ssldir = certificate, s.ca.certPEM, csr.GetSsldir()
	}
	if node.GetEd25519() != nil {
		answer.ServerClaims = s.claims()
	}

	hclog.FromContext(ctx).Info("node enrolled", "version", node.GetVersion())
	return helper.ConfigureWith(answer), nil
}
