package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/choria-io/fisk"
	"github.com/kballard/go-shellquote"
	"github.com/sirupsen/logrus"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"sigs.k8s.io/yaml"

	"github.com/choria-provisioner/provisioner/config"
	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/execadapter"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
	"github.com/choria-provisioner/provisioner/helper/static"
	"github.com/choria-provisioner/provisioner/metrics"
)

// addHelper adds the tools for people who write helpers, and the hidden commands
// by which this program is a helper itself: the adapter of exec helpers and the
// static helper.
func addHelper(c *cli, app *fisk.Application) {
	h := app.Command("helper", "Tools for those who write helpers")
	addHelperCall(c, h)
	addHelperTest(c, h)

	adapter := &execadapter.Config{Build: version}
	cmd := app.Command("exec-helper", "Serves an exec helper as a plugin").Hidden().Action(func(*fisk.ParseContext) error {
		return execadapter.Serve(*adapter)
	})
	cmd.Flag("timeout", "Deadline of the program").Default("10s").DurationVar(&adapter.Timeout)
	cmd.Arg("command", "The program and its arguments").Required().StringsVar(&adapter.Command)

	app.Command("static-helper", "Serves as a helper by rules in its configuration").Hidden().Action(func(*fisk.ParseContext) error {
		helper.Serve(static.Plugin(version))
		return nil
	})
}

// helperUnderTest is the helper that a command starts, as its flags name it.
type helperUnderTest struct {
	path    string
	args    []string
	exec    string
	config  string
	timeout time.Duration
	mtls    string
}

func (h *helperUnderTest) addFlags(cmd *fisk.CmdClause) {
	cmd.Arg("path", "The plugin's program").StringVar(&h.path)
	cmd.Flag("arg", "An argument of the plugin; may be given again").StringsVar(&h.args)
	cmd.Flag("exec", "Command line of an exec helper, instead of a plugin").StringVar(&h.exec)
	cmd.Flag("config", "File with the plugin's configuration, YAML or JSON: what stands under helper.config").StringVar(&h.config)
	cmd.Flag("timeout", "Deadline of a call").Default("10s").DurationVar(&h.timeout)
	cmd.Flag("mtls", "Protection of the connection").Default("auto").EnumVar(&h.mtls, "auto", "off")
}

// site is the configuration that the flags make.
func (h *helperUnderTest) site() (config.Helper, error) {
	site := config.Helper{Timeout: h.timeout, MTLS: h.mtls}
	switch {
	case (h.path == "") == (h.exec == ""):
		return site, errors.New("give either the path of a plugin or --exec")
	case h.exec != "" && (h.config != "" || len(h.args) > 0):
		return site, errors.New("an exec helper takes no --config and no --arg")
	case h.exec != "":
		command, err := shellquote.Split(h.exec)
		if err != nil {
			return site, fmt.Errorf("--exec: %w", err)
		}
		site.CommandLine, site.Command = h.exec, command
	default:
		site.Plugin, site.Args = h.path, h.args
	}

	if h.config != "" {
		text, err := os.ReadFile(h.config)
		if err != nil {
			return site, err
		}
		if site.Config, err = yaml.YAMLToJSON(text); err != nil {
			return site, fmt.Errorf("%s: %w", h.config, err)
		}
	}

	return site, nil
}

// helperCall is the command "helper call".
type helperCall struct {
	helperUnderTest

	cli         *cli
	input       string
	showSecrets bool
}

func addHelperCall(c *cli, h *fisk.CmdClause) {
	call := &helperCall{cli: c}
	cmd := h.Command("call", "Starts a helper, asks it for one node's configuration and prints the answer").Action(call.run)
	call.addFlags(cmd)
	cmd.Flag("input", "JSON file with the node (docs/helpers.md); --input=- is standard input").Required().StringVar(&call.input)
	cmd.Flag("show-secrets", "Print secrets too").UnNegatableBoolVar(&call.showSecrets)
}

func (h *helperCall) run(*fisk.ParseContext) error {
	site, err := h.site()
	if err != nil {
		return err
	}
	text, err := await(h.cli.ctx, h.readInput)
	if err != nil {
		return err
	}
	node, err := parseNode(text)
	if err != nil {
		return fmt.Errorf("%s: %w", h.input, err)
	}

	log := logrus.New()
	log.SetOutput(h.cli.stderr)
	sup, err := newHelper(site, metrics.New("").Helper(), log.WithField("component", "helper"))
	if err != nil {
		return err
	}
	defer sup.Close()
	if err := sup.Start(h.cli.ctx); err != nil {
		return err
	}

	resp, err := sup.ConfigureNode(h.cli.ctx, &helperv1.ConfigureNodeRequest{
		RequestId: rand.Text(),
		Node:      node,
		Context:   contextOf(node),
	})
	if err != nil {
		return err
	}

	var answer proto.Message = resp
	if !h.showSecrets {
		answer = helper.Redact(resp)
	}
	if err := printJSON(h.cli.stdout, answer); err != nil {
		return err
	}
	if err := helper.CheckAnswer(resp); err != nil {
		return fmt.Errorf("the daemon would refuse this answer: %w", err)
	}

	return nil
}

// contextOf says which features are on where the node is like this.
func contextOf(node *helperv1.Node) *helperv1.Context {
	return &helperv1.Context{
		FeaturePki:     node.GetCsr() != nil,
		FeatureJwt:     len(node.GetProvisioningClaimsJson())+len(node.GetRawClaimsJson()) > 0,
		FeatureEd25519: node.GetEd25519() != nil,
	}
}

func (h *helperCall) readInput() ([]byte, error) {
	if h.input == "-" {
		return io.ReadAll(h.cli.stdin)
	}

	return os.ReadFile(h.input)
}

// parseNode reads a Node as protobuf's JSON. Its fields that hold a JSON
// document as bytes may be written as that document instead of base64.
func parseNode(text []byte) (*helperv1.Node, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	for k, v := range fields {
		if trimmed := bytes.TrimSpace(v); trimmed[0] == '{' && isDocument((&helperv1.Node{}).ProtoReflect().Descriptor(), k) {
			b, err := json.Marshal([]byte(trimmed))
			if err != nil {
				return nil, err
			}
			fields[k] = b
		}
	}
	text, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}

	node := &helperv1.Node{}
	if err := protojson.Unmarshal(text, node); err != nil {
		return nil, err
	}
	if node.GetIdentity() == "" {
		return nil, errors.New("the node has no identity")
	}
	if len(node.GetInventoryJson()) == 0 {
		node.InventoryJson = []byte("{}") // the daemon always has one
	}

	return node, nil
}

// printJSON prints a message with its JSON documents in place.
func printJSON(w io.Writer, m proto.Message) error {
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return err
	}
	var tree map[string]any
	if err := json.Unmarshal(b, &tree); err != nil {
		return err
	}
	showDocuments(tree, m.ProtoReflect().Descriptor())

	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")

	return enc.Encode(tree)
}

// showDocuments replaces the base64 of JSON documents by the documents.
func showDocuments(tree map[string]any, d protoreflect.MessageDescriptor) {
	for k, v := range tree {
		switch v := v.(type) {
		case map[string]any:
			if f := d.Fields().ByTextName(k); f != nil && f.Message() != nil && !f.IsMap() {
				showDocuments(v, f.Message())
			}
		case string:
			var b []byte
			if isDocument(d, k) && json.Unmarshal([]byte(`"`+v+`"`), &b) == nil && json.Valid(b) {
				tree[k] = json.RawMessage(b)
			}
		}
	}
}

// isDocument says whether a field holds a JSON document as bytes, by the
// contract's naming.
func isDocument(d protoreflect.MessageDescriptor, name string) bool {
	f := d.Fields().ByTextName(name)
	if f == nil {
		f = d.Fields().ByJSONName(name)
	}

	return f != nil && f.Kind() == protoreflect.BytesKind && strings.HasSuffix(f.TextName(), "_json")
}
