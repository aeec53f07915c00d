// Package static is a helper without code: rules pick what happens to a node by
// its facts, its identity or the extensions of its provisioning token, and
// templates fill in the values. docs/helpers.md has a worked example.
package static

import (
	"context"
	_ "embed"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// Name is the helper's name as a plugin.
const Name = "static"

//go:embed schema.json
var schema string

// Plugin returns the helper; build is the host's version.
func Plugin(build string) *helper.Plugin {
	s := &site{}

	return &helper.Plugin{
		Name:          Name,
		Build:         build,
		ConfigSchema:  schema,
		Validate:      s.validate,
		Configure:     s.configure,
		ConfigureNode: s.configureNode,
	}
}

// site is the helper once it is configured.
type site struct {
	rules []*rule
}

func (s *site) validate(_ context.Context, config *structpb.Struct) ([]string, error) {
	_, err := readRules(config)
	return nil, err
}

func (s *site) configure(_ context.Context, config *structpb.Struct) (err error) {
	s.rules, err = readRules(config)
	return err
}

// configureNode answers by the first rule that matches. Nothing but the request
// goes into the answer, so that the same request gets the same one.
func (s *site) configureNode(_ context.Context, req *helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error) {
	n, err := readNode(req)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}

	for _, r := range s.rules {
		if !r.match.matches(n) {
			continue
		}
		answer, err := r.decide(n)
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "rule %q: %v", r.name, err)
		}
		return answer, nil
	}

	return nil, status.Error(codes.NotFound, "no rule matches the node")
}
