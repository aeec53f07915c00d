package helper

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// ProvisionKey is the setting that keeps a server in provisioning mode
// (go-choria, choria, ProvisionMode).
const ProvisionKey = "plugin.choria.server.provision"

// CheckAnswer says what is wrong with an answer, by the rules of the contract:
// what a node would refuse, or would read otherwise than it was meant. The node
// itself finds some of it only after it has written its configuration.
func CheckAnswer(answer *helperv1.ConfigureNodeResponse) error {
	switch d := answer.GetDecision().(type) {
	case *helperv1.ConfigureNodeResponse_Configure:
		return checkConfigure(d.Configure)
	case *helperv1.ConfigureNodeResponse_Defer:
		if after := d.Defer.GetRetryAfter(); after != nil && (after.CheckValid() != nil || after.AsDuration() < 0) {
			return fmt.Errorf("defer: retry_after is %v, not a time from now", after)
		}
		return nil
	case *helperv1.ConfigureNodeResponse_Shutdown:
		return nil
	}

	return errors.New("it holds no decision")
}

func checkConfigure(c *helperv1.Configure) error {
	return errors.Join(
		checkConfiguration(c.GetConfiguration()),
		checkPolicies("action_policies", ".policy", c.GetActionPolicies()),
		checkPolicies("opa_policies", ".rego", c.GetOpaPolicies()),
		checkClaims(c.GetServerClaims()),
		checkDirectory(c.GetSsldir()),
	)
}

// checkConfiguration knows that the agent writes a line "key=value" for each
// entry.
func checkConfiguration(configuration map[string]string) error {
	if len(configuration) == 0 {
		return errors.New("configuration: it is empty")
	}

	const breaks = "\r\n\x00"
	var errs []error
	for _, k := range slices.Sorted(maps.Keys(configuration)) {
		v := configuration[k]
		switch {
		case strings.TrimSpace(k) == "":
			errs = append(errs, errors.New("configuration: there is an empty key"))
		case strings.ContainsAny(k, breaks), strings.ContainsAny(v, breaks):
			errs = append(errs, fmt.Errorf("configuration: key %q: a line break would add a line to the node's configuration", k))
		case strings.HasPrefix(strings.TrimSpace(k), "#"):
			errs = append(errs, fmt.Errorf("configuration: key %q: the node would read it as a comment", k))
		case len(k)+len("=")+len(v) >= bufio.MaxScanTokenSize:
			errs = append(errs, fmt.Errorf("configuration: key %q: its line would have %d bytes, and a node reads nothing from a line of %d on", k, len(k)+len("=")+len(v), bufio.MaxScanTokenSize))
		case strings.Contains(k, "="):
			errs = append(errs, fmt.Errorf("configuration: key %q: a key cannot hold an equals sign", k))
		case strings.TrimSpace(k) == ProvisionKey && isTrue(v):
			errs = append(errs, fmt.Errorf("configuration: key %q: %q leaves provisioning on, the node would refuse to restart", k, v))
		}
	}

	return errors.Join(errs...)
}

// isTrue reads a boolean as go-choria's configuration does (confkey).
func isTrue(v string) bool {
	return slices.Contains([]string{"1", "yes", "true", "y", "t"}, strings.ToLower(strings.TrimSpace(v)))
}

// checkPolicies refuses file names that the agent refuses or that would leave
// its folder.
func checkPolicies(kind, suffix string, policies map[string]string) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		switch {
		case !strings.HasSuffix(name, suffix) || name == suffix:
			errs = append(errs, fmt.Errorf("%s: %q must end in %s", kind, name, suffix))
		case strings.ContainsAny(name, "/\\"), strings.ContainsFunc(name, unicode.IsControl):
			errs = append(errs, fmt.Errorf("%s: %q must be a file name without a folder or control characters", kind, name))
		}
	}

	return errors.Join(errs...)
}

func checkDirectory(dir string) error {
	if strings.ContainsFunc(dir, unicode.IsControl) {
		return fmt.Errorf("ssldir: %q holds a control character", dir)
	}

	return nil
}

func checkClaims(c *helperv1.ServerClaims) error {
	var permissions map[string]bool
	if p := c.GetPermissionsJson(); len(p) > 0 && json.Unmarshal(p, &permissions) != nil {
		return errors.New("server_claims: permissions_json is no JSON object of booleans")
	}
	if c.GetExpiresAt() < 0 {
		return fmt.Errorf("server_claims: expires_at is %d, not seconds since 1970", c.GetExpiresAt())
	}

	return nil
}
