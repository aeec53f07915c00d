// Command decider is the helper plugin of a site whose decisions about releases
// a test writes into files. Every node gets the configuration that stands in the
// helper's own.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// site is the helper's configuration.
type site struct {
	// Configuration is what nodes get. {identity} and {directory} stand for the
	// node's identity and the directory of its keys.
	Configuration map[string]string `json:"configuration"`
	// Decisions is a directory with the answer for each node: IDENTITY@VERSION.json
	// while it runs that version, else IDENTITY.json. A node without one keeps its
	// version. One that is empty ends the helper.
	Decisions string `json:"decisions"`
	// Journal is a file to which every outcome is added, one JSON object a line.
	Journal string `json:"journal"`

	mu sync.Mutex
}

func main() {
	s := &site{}
	helper.Serve(&helper.Plugin{
		Name:          "decider",
		Build:         "1",
		Configure:     func(_ context.Context, config *structpb.Struct) error { return helper.DecodeConfig(config, s) },
		ConfigureNode: s.configureNode,
		DecideRelease: s.decideRelease,
		ReportOutcome: s.reportOutcome,
	})
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

func (s *site) decideRelease(_ context.Context, req *helperv1.DecideReleaseRequest) (*helperv1.DecideReleaseResponse, error) {
	node := req.GetNode()
	file := filepath.Join(s.Decisions, node.GetIdentity())
	text, err := os.ReadFile(file + "@" + node.GetVersion() + ".json")
	if errors.Is(err, os.ErrNotExist) {
		text, err = os.ReadFile(file + ".json")
	}
	switch {
	case errors.Is(err, os.ErrNotExist):
		return helper.Keep("nothing was decided"), nil
	case err != nil:
		return nil, status.Errorf(codes.Internal, "decision: %v", err)
	case len(text) == 0:
		os.Exit(1)
	}
	answer := &helperv1.DecideReleaseResponse{}
	if err := protojson.Unmarshal(text, answer); err != nil {
		return nil, status.Errorf(codes.Internal, "decision: %v", err)
	}

	return answer, nil
}

func (s *site) reportOutcome(_ context.Context, req *helperv1.ReportOutcomeRequest) error {
	line, err := json.Marshal(req)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f, err := os.OpenFile(s.Journal, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))

	return errors.Join(err, f.Close())
}
