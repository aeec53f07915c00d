// Command sitehelper is the helper plugin of a site whose nodes have ed25519
// keys: every node gets the configuration that stands in the helper's own.
package main

import (
	"context"
	"os/exec"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// site is the helper's configuration.
type site struct {
	// Configuration is what nodes get. {identity} and {directory} stand for
	// the node's identity and the directory of its keys.
	Configuration map[string]string `json:"configuration"`
	// Child is a program that runs beside the helper, as one that talks to an
	// inventory might; its end is the host's business.
	Child []string `json:"child"`
}

func main() {
	s := &site{}
	helper.Serve(&helper.Plugin{
		Name:          "sitehelper",
		Build:         "1",
		Configure:     s.configure,
		ConfigureNode: s.configureNode,
	})
}

func (s *site) configure(_ context.Context, config *structpb.Struct) error {
	err := helper.DecodeConfig(config, s)
	if err != nil {
		return err
	}
	if len(s.Child) == 0 {
		return nil
	}

	err = exec.Command(s.Child[0], s.Child[1:]...).Start()
	if err != nil {
		return status.Errorf(codes.FailedPrecondition, "child: %v", err)
	}

	return nil
}

func (s *site) configureNode(_ context.Context, req *helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error) {
	node := strings.NewReplacer(
		"{identity}", req.GetNode().GetIdentity(),
		"{directory}", req.GetNode().GetEd25519().GetDirectory(),
	)
	configuration := map[string]string{}
	for key, value := range s.Configuration {
		configuration[key] = node.Replace(value)
	}

	return helper.Configure(configuration), nil
}
