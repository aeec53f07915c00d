// Package helper is the SDK for helper plugins of the Choria Provisioner.
//
// A helper is a small program whose main calls Serve:
//
//	func main() {
//		helper.Serve(&helper.Plugin{
//			Name:  "mysite",
//			Build: "1.0",
//			ConfigureNode: func(ctx context.Context, req *helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error) {
//				return helper.Configure(map[string]string{"identity": req.GetNode().GetIdentity()}), nil
//			},
//		})
//	}
//
// The host starts it and speaks gRPC with it; the contract, with what each
// status code makes the host do, is in the proto file beside this package.
package helper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// Plugin is what a helper is and does. The functions are called from many
// goroutines at once. Their ctx carries the host's deadline, and a logger with
// the node's identity (hclog.FromContext).
//
// An error made with google.golang.org/grpc/status is passed to the host with
// its code, any other as UNKNOWN, a fault of the helper.
type Plugin struct {
	// Name is the helper's name in logs and metrics: [a-z0-9-], at most 64 bytes.
	Name string
	// Build is the helper's version, free text, at most 128 bytes; may be empty.
	Build string

	// ConfigureNode turns what is known of a node into its configuration.
	// Required.
	ConfigureNode func(context.Context, *helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error)

	// DecideRelease decides which version a node should run. Optional.
	DecideRelease func(context.Context, *helperv1.DecideReleaseRequest) (*helperv1.DecideReleaseResponse, error)
	// ReportOutcome hears how decisions ended. Optional, and called only when
	// DecideRelease is set.
	ReportOutcome func(context.Context, *helperv1.ReportOutcomeRequest) error

	// Configure takes the helper's own configuration once, before any node. It
	// is empty when the site sets none. Optional: without it a site that sets
	// one is refused. DecodeConfig reads it into a struct.
	Configure func(context.Context, *structpb.Struct) error
	// Validate judges a configuration, changes nothing, and may return warnings
	// for the operator. Optional, and called only when Configure is set.
	Validate func(context.Context, *structpb.Struct) (warnings []string, err error)
	// ConfigSchema is a JSON schema of the configuration; may be empty.
	ConfigSchema string

	// MaxInFlight is how many calls the helper takes at once, 0 is no limit.
	MaxInFlight uint32

	// Capabilities are offered beside those that follow from the functions above.
	Capabilities []helperv1.Capability
}

// validName is the rule of GetInfoResponse.name.
var validName = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// maxBuild is the limit of GetInfoResponse.build in bytes.
const maxBuild = 128

// CheckInfo says what is wrong with a helper's description of itself, by the
// rules of the contract.
func CheckInfo(info *helperv1.GetInfoResponse) error {
	var errs []error
	if !validName.MatchString(info.GetName()) {
		errs = append(errs, fmt.Errorf("the name %q is not 1 to 64 of a-z, 0-9 and -", info.GetName()))
	}
	if len(info.GetBuild()) > maxBuild {
		errs = append(errs, fmt.Errorf("the build has %d bytes, more than %d", len(info.GetBuild()), maxBuild))
	}

	offers := map[helperv1.Capability]bool{}
	for _, c := range info.GetCapabilities() {
		offers[c] = true
	}
	if offers[helperv1.Capability_CAPABILITY_DECIDE_RELEASE] && offers[helperv1.Capability_CAPABILITY_CONFIGURE_WITH_VERSION] {
		errs = append(errs, errors.New("CAPABILITY_DECIDE_RELEASE and CAPABILITY_CONFIGURE_WITH_VERSION exclude one another"))
	}

	return errors.Join(errs...)
}

// info describes the plugin as GetInfo does.
func (p *Plugin) info() *helperv1.GetInfoResponse {
	caps := append([]helperv1.Capability{}, p.Capabilities...)
	if p.DecideRelease != nil {
		caps = append(caps, helperv1.Capability_CAPABILITY_DECIDE_RELEASE)
	}
	if p.Configure != nil {
		caps = append(caps, helperv1.Capability_CAPABILITY_CONFIGURE)
	}

	return &helperv1.GetInfoResponse{
		Name:         p.Name,
		Build:        p.Build,
		Capabilities: caps,
		MaxInFlight:  p.MaxInFlight,
		ConfigSchema: p.ConfigSchema,
	}
}

// check finds what the author of a plugin forgot.
func (p *Plugin) check() error {
	errs := []error{CheckInfo(p.info())}
	if p.ConfigureNode == nil {
		errs = append(errs, errors.New("ConfigureNode is not set"))
	}
	if p.ReportOutcome != nil && p.DecideRelease == nil {
		errs = append(errs, errors.New("ReportOutcome is set without DecideRelease"))
	}
	if p.Validate != nil && p.Configure == nil {
		errs = append(errs, errors.New("Validate is set without Configure"))
	}

	return errors.Join(errs...)
}

// DecodeConfig reads a helper's configuration into a struct with json tags. A
// key that the struct lacks, or a value of the wrong type, is an INVALID_ARGUMENT
// error to be returned to the host as it is.
func DecodeConfig(config *structpb.Struct, into any) error {
	text := "{}"
	if config != nil {
		b, err := config.MarshalJSON()
		if err != nil {
			return status.Errorf(codes.InvalidArgument, "config: %v", err)
		}
		text = string(b)
	}

	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return status.Errorf(codes.InvalidArgument, "config: %s", strings.TrimPrefix(err.Error(), "json: "))
	}

	return nil
}
