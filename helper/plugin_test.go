package helper_test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
	"github.com/choria-provisioner/provisioner/helper/internal/testplugin"
)

func TestCheck(t *testing.T) {
	cases := []struct {
		why    string
		change func(*helper.Plugin)
		want   string
	}{
		{"complete", func(*helper.Plugin) {}, ""},
		{"no name", func(p *helper.Plugin) { p.Name = "" }, `the name "" is not 1 to 64 of a-z, 0-9 and -`},
		{"a name becomes a label", func(p *helper.Plugin) { p.Name = "My Site" }, `the name "My Site" is not 1 to 64 of a-z, 0-9 and -`},
		{"a build is bounded", func(p *helper.Plugin) { p.Build = strings.Repeat("1", 129) }, "the build has 129 bytes, more than 128"},
		{"nothing to call", func(p *helper.Plugin) { p.ConfigureNode = nil }, "ConfigureNode is not set"},
		{"never called", func(p *helper.Plugin) { p.DecideRelease = nil }, "ReportOutcome is set without DecideRelease"},
		{"never called either", func(p *helper.Plugin) { p.Configure = nil }, "Validate is set without Configure"},
		{"two ways to decide", func(p *helper.Plugin) {
			p.Capabilities = append(p.Capabilities, helperv1.Capability_CAPABILITY_CONFIGURE_WITH_VERSION)
		}, "CAPABILITY_DECIDE_RELEASE and CAPABILITY_CONFIGURE_WITH_VERSION exclude one another"},
	}

	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			p := testplugin.New()
			c.change(p)
			got := ""
			if err := p.Check(); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestDecodeConfig(t *testing.T) {
	cases := []struct {
		why  string
		in   map[string]any
		want string
	}{
		{"known keys", map[string]any{"fail": "x"}, ""},
		{"nothing set", nil, ""},
		{"a misspelt key is noticed", map[string]any{"fial": "x"}, `config: unknown field "fial"`},
		{"a wrong type", map[string]any{"fail": 1}, "config: cannot unmarshal number into Go struct field Config.fail of type string"},
	}

	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			s, err := structpb.NewStruct(c.in)
			if err != nil {
				t.Fatal(err)
			}
			err = helper.DecodeConfig(s, &testplugin.Config{})
			if c.want == "" {
				if err != nil {
					t.Errorf("got %v", err)
				}
				return
			}
			if status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != c.want {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// Started by hand, a plugin says what it is instead of waiting.
func TestStartedByHand(t *testing.T) {
	out, err := exec.Command(program).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "choria-provisioner helper call") {
		t.Errorf("got %v, %s", err, out)
	}
}

func TestRedact(t *testing.T) {
	const secret = "s3cret"
	config, err := structpb.NewStruct(map[string]any{"password": secret})
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		why       string
		in        proto.Message
		remaining string
	}{
		{"a key in an answer, two levels down", helper.ConfigureWith(&helperv1.Configure{PrivateKeyPem: secret, CaPem: "ca"}), helper.Redacted},
		{"the token in a node's claims", &helperv1.ConfigureNodeRequest{Node: &helperv1.Node{
			Identity: "n1", RawClaimsJson: []byte(secret), ProvisioningClaimsJson: []byte(secret),
		}}, "n1"},
		{"a helper's configuration", &helperv1.ConfigureRequest{Config: config}, ""},
		{"an empty message", &helperv1.ConfigureNodeRequest{}, ""},
	}

	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			before := proto.Clone(c.in)
			got, err := proto.Marshal(helper.Redact(c.in))
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(got, []byte(secret)) || !bytes.Contains(got, []byte(c.remaining)) {
				t.Errorf("got %q", got)
			}
			if !proto.Equal(c.in, before) {
				t.Error("the message itself was changed")
			}
		})
	}
}

// A plugin builds with little: the weight of the SDK is the weight of every
// site's helper.
func TestSDKIsLight(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-json=ImportPath,Module", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	allowed := []string{
		"github.com/choria-provisioner/provisioner/helper",
		"github.com/hashicorp/go-plugin", "github.com/hashicorp/go-hclog", "google.golang.org/grpc", "google.golang.org/protobuf",
		// What those four need themselves.
		"github.com/fatih/color", "github.com/golang/protobuf", "github.com/hashicorp/yamux", "github.com/mattn/go-colorable",
		"github.com/mattn/go-isatty", "github.com/oklog/run", "golang.org/x/net", "golang.org/x/sys", "golang.org/x/text",
		"google.golang.org/genproto/googleapis/rpc",
	}
	known := map[string]bool{}
	for _, m := range allowed {
		known[m] = true
	}

	d := json.NewDecoder(bytes.NewReader(out))
	for d.More() {
		var p struct {
			ImportPath string
			Module     *struct{ Path string }
		}
		if err := d.Decode(&p); err != nil {
			t.Fatal(err)
		}
		if p.Module != nil && !known[p.Module.Path] {
			t.Errorf("%s of %s is a new dependency", p.ImportPath, p.Module.Path)
		}
	}

	out, err = exec.Command("go", "list", "-m", "all").Output()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(out), "choria-io/") {
		t.Errorf("the module needs go-choria:\n%s", out)
	}
}
