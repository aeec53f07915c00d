package demo

import (
	"context"
	"path"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

const (
	// HelperCommand is the command by which this program serves as the helper.
	HelperCommand = "demo-helper"

	helperName = HelperCommand
	collective = "mcollective"
	// newRelease is what nodes with a fault of updates are sent.
	newRelease = "0.31.0"
	issuerName = "choria"
)

// helperConfig is the helper's configuration, under the key config.
type helperConfig struct {
	// Broker is host:port, for the nodes.
	Broker string `json:"broker"`
	// CA is the path of the authority of the broker's certificate.
	CA string `json:"ca"`
	// Issuer is the hex public key of the Organization Issuer.
	Issuer string `json:"issuer"`
	// Target is the version that nodes with a fault of updates should run; may be
	// empty.
	Target string `json:"target"`
}

// ServeHelper is the helper plugin of the demo, a process of its own that the
// provisioner starts. version is that of this program.
func ServeHelper(version string) {
	s := &site{}
	helper.Serve(&helper.Plugin{
		Name:  helperName,
		Build: version,
		Configure: func(_ context.Context, cfg *structpb.Struct) error {
			return helper.DecodeConfig(cfg, &s.cfg)
		},
		ConfigureNode: s.configureNode,
		DecideRelease: s.decideRelease,
	})
}

// site is the helper once it is configured.
type site struct {
	cfg helperConfig
}

func (s *site) configureNode(_ context.Context, req *helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error) {
	node := req.GetNode()
	dir := node.GetEd25519().GetDirectory()

	return helper.Configure(map[string]string{
		"identity":                       node.GetIdentity(),
		"collectives":                    collective,
		"main_collective":                collective,
		"plugin.choria.server.provision": "false",
		"plugin.choria.use_srv":          "false",
		"plugin.choria.middleware_hosts": s.cfg.Broker,

		"plugin.security.provider":                         "choria",
		"plugin.security.choria.ca":                        s.cfg.CA,
		"plugin.security.choria.token_file":                path.Join(dir, "server.jwt"),
		"plugin.security.choria.seed_file":                 path.Join(dir, "server.seed"),
		"plugin.security.issuer.names":                     issuerName,
		"plugin.security.issuer." + issuerName + ".public": s.cfg.Issuer,
	}), nil
}

func (s *site) decideRelease(_ context.Context, req *helperv1.DecideReleaseRequest) (*helperv1.DecideReleaseResponse, error) {
	node := req.GetNode()
	switch {
	case s.cfg.Target == "", node.GetVersion() == s.cfg.Target, !strings.HasPrefix(node.GetIdentity(), updatedNode):
		return helper.Keep(""), nil
	case slices.Contains(req.GetRecord().GetBarred(), s.cfg.Target):
		return helper.Keep(s.cfg.Target + " is barred"), nil
	default:
		return helper.Upgrade(s.cfg.Target, "the newest release"), nil
	}
}
