package helpertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
	"github.com/choria-provisioner/provisioner/helper/supervisor"
)

// checks are all rules, in the order of the report.
func checks() []check {
	return []check{
		{"start", start, true},
		{"info", info, false},
		{"configuration", configuration, false},
		{"decisions", decisions, true},
		{"unknown-fields", unknownFields, false},
		{"request-id", requestID, false},
		{"concurrency", concurrency, false},
		{"deadline", deadline, false},
		{"size", size, false},
		{"descriptors", descriptorGrowth, false},
		{"release", release, false},
		{"stdout", stdout, false},
		{"shutdown", shutdown, false},
	}
}

// start: the handshake, SERVING for the service "", GetInfo, Validate and
// Configure, all within the start timeout. The supervisor checks each.
func start(ctx context.Context, k *kit) verdict {
	began := time.Now()
	return k.with(ctx, func(_ context.Context, h *supervisor.Supervisor) verdict {
		took := time.Since(began)
		k.info = h.Info()
		k.report.Name, k.report.Build = k.info.Name, k.info.Build

		return pass("ready within %v", took.Round(time.Millisecond))
	})
}

// info: what GetInfo says beyond what the host insists on.
func info(_ context.Context, k *kit) verdict {
	configurable := k.info.Has(helperv1.Capability_CAPABILITY_CONFIGURE)
	var schema map[string]any
	switch {
	case k.info.ConfigSchema != "" && json.Unmarshal([]byte(k.info.ConfigSchema), &schema) != nil:
		return fail("config_schema is no JSON object")
	case k.info.ConfigSchema != "" && !configurable:
		return warn("there is a config_schema, but CAPABILITY_CONFIGURE is not offered: no configuration will come")
	case k.info.Build == "":
		return warn("build is empty: nobody will see which one runs")
	}
	for _, c := range k.info.Capabilities {
		if _, known := helperv1.Capability_name[int32(c)]; !known || c == helperv1.Capability_CAPABILITY_UNSPECIFIED {
			return warn("capability %d is unknown to this host", c)
		}
	}

	return pass("")
}

// unknownKey is a key of a configuration that no helper knows.
const unknownKey = "helpertest-unknown-key"

// configuration: a misspelt key is noticed, by INVALID_ARGUMENT or a warning.
func configuration(ctx context.Context, k *kit) verdict {
	if !k.info.Has(helperv1.Capability_CAPABILITY_CONFIGURE) {
		return skip("the helper takes none")
	}

	config := map[string]json.RawMessage{}
	if len(k.cfg.Supervisor.PluginConfig) > 0 {
		if err := json.Unmarshal(k.cfg.Supervisor.PluginConfig, &config); err != nil {
			return fail("%v", err)
		}
	}
	config[unknownKey] = json.RawMessage(`"x"`)
	text, err := json.Marshal(config)
	if err != nil {
		return fail("%v", err)
	}

	cfg := k.cfg.Supervisor
	cfg.PluginConfig = text
	h, err := k.start(ctx, cfg)
	switch {
	case err == nil:
		_ = h.Close()
		k.sweep()
		return warn("an unknown key is accepted: a misspelt one will not be noticed")
	case status.Code(err) != codes.InvalidArgument:
		return fail("an unknown key is refused with %v, not with INVALID_ARGUMENT: %v", status.Code(err), err)
	}

	return pass("")
}

// decisions: each node gets an answer that the host accepts.
func decisions(ctx context.Context, k *kit) verdict {
	return k.with(ctx, func(ctx context.Context, h *supervisor.Supervisor) verdict {
		var failed, refused []string
		for _, s := range slices.Concat(k.fleet.subjects(), ownSubjects(k.cfg.Nodes)) {
			err := k.decide(ctx, h, request(s.make()))
			switch code := status.Code(err); {
			case err == nil:
				k.subjects = append(k.subjects, s)
			case refuses(code) && !s.own && !errors.Is(err, supervisor.ErrTooLarge):
				refused = append(refused, fmt.Sprintf("%s: %v", s.name, err))
			default:
				failed = append(failed, fmt.Sprintf("%s: %s", s.name, describe(err)))
				// One that does not answer is not waited for again and again.
				if code == codes.DeadlineExceeded || code == codes.Unavailable {
					return fail("%s", strings.Join(failed, "\n"))
				}
			}
		}

		switch {
		case len(failed) > 0:
			return fail("%s", strings.Join(failed, "\n"))
		case len(k.subjects) == 0:
			return fail("every node is refused; give nodes that the helper knows\n%s", strings.Join(refused, "\n"))
		case len(refused) > 0:
			return warn("refused, as is its right:\n%s", strings.Join(refused, "\n"))
		}
		return pass("%d kinds of nodes", len(k.subjects))
	})
}

// badAnswer is an answer that came and that the host would refuse.
type badAnswer struct{ error }

func describe(err error) string {
	var bad badAnswer
	if errors.As(err, &bad) {
		return err.Error()
	}

	return fault(status.Code(err), err)
}

// decide asks about a node and judges the answer.
func (k *kit) decide(ctx context.Context, h *supervisor.Supervisor, req *helperv1.ConfigureNodeRequest) error {
	answer, err := h.ConfigureNode(ctx, req)
	if err != nil {
		return err
	}

	return k.judge(req.GetNode(), answer)
}

func (k *kit) judge(n *helperv1.Node, answer *helperv1.ConfigureNodeResponse) error {
	err := helper.CheckAnswer(answer)
	if err == nil {
		err = k.checkIdentity(n, answer)
	}
	if err == nil && n.GetCsr() != nil {
		err = checkCertificate(n, answer.GetConfigure())
	}
	if err != nil {
		return badAnswer{fmt.Errorf("the host would refuse the answer: %w", err)}
	}

	return nil
}

// unknownFields: a later host sends fields that this helper does not know.
func unknownFields(ctx context.Context, k *kit) verdict {
	later := protowire.AppendString(protowire.AppendTag(nil, 19000, protowire.BytesType), "from a later version")
	return k.with(ctx, func(ctx context.Context, h *supervisor.Supervisor) verdict {
		req := request(k.subjects[0].make())
		for _, m := range []proto.Message{req, req.GetNode(), req.GetContext()} {
			m.ProtoReflect().SetUnknown(later)
		}
		if err := k.decide(ctx, h, req); err != nil {
			return fail("%s", describe(err))
		}
		return pass("")
	})
}

// requestID: the same request gets the same answer, certificate included,
// whether it comes again or twice at once.
func requestID(ctx context.Context, k *kit) verdict {
	if k.isExec() {
		return skip("an exec helper is not told the request_id, and runs once in a pass")
	}

	return k.with(ctx, func(ctx context.Context, h *supervisor.Supervisor) verdict {
		for _, s := range k.subjects {
			req := request(s.make())
			answers := make([]*helperv1.ConfigureNodeResponse, 4)
			errs := make([]error, len(answers))
			ask := func(i int) { answers[i], errs[i] = h.ConfigureNode(ctx, req) }
			ask(0)
			var calls sync.WaitGroup
			calls.Go(func() { ask(1) })
			calls.Go(func() { ask(2) })
			calls.Wait()
			ask(3)

			if err := errors.Join(errs...); err != nil {
				return fail("%s: one of four calls with the same request_id: %v", s.name, err)
			}
			for _, a := range answers[1:] {
				if !proto.Equal(a, answers[0]) {
					return fail("%s: the same request_id got different answers: %s", s.name, difference(answers[0], a))
				}
			}
		}
		return pass("")
	})
}

// concurrency: as many calls at once as the host makes are all answered, each
// for its own node.
func concurrency(ctx context.Context, k *kit) verdict {
	return k.with(ctx, func(ctx context.Context, h *supervisor.Supervisor) verdict {
		n := k.info.MaxInFlight
		if err := k.many(ctx, h, n, n); err != nil {
			return fail("%d calls at once: %s", n, describe(err))
		}
		return pass("%d calls at once", n)
	})
}

// many makes calls for all kinds of nodes, so many of them at once, and returns
// the first error.
func (k *kit) many(ctx context.Context, h *supervisor.Supervisor, calls, atOnce int) error {
	var workers sync.WaitGroup
	errs := make([]error, atOnce)
	for w := range atOnce {
		workers.Go(func() {
			for i := w; i < calls && errs[w] == nil; i += atOnce {
				errs[w] = k.decide(ctx, h, request(k.subjects[i%len(k.subjects)].make()))
			}
		})
	}
	workers.Wait()

	for _, err := range errs {
		if err != nil {
			return err
		}
	}

	return nil
}

// deadline: calls that were given up, some at once and some in the middle, keep
// no later one from its answer.
func deadline(ctx context.Context, k *kit) verdict {
	return k.with(ctx, func(ctx context.Context, h *supervisor.Supervisor) verdict {
		var calls sync.WaitGroup
		for i := range k.info.MaxInFlight {
			calls.Go(func() {
				short, cancel := context.WithTimeout(ctx, time.Duration(i%20+1)*time.Millisecond)
				defer cancel()
				_, _ = h.ConfigureNode(short, request(k.subjects[i%len(k.subjects)].make()))
			})
		}
		calls.Wait()

		if err := k.decide(ctx, h, request(k.subjects[0].make())); err != nil {
			return fail("after %d calls that were given up: %s", k.info.MaxInFlight, describe(err))
		}
		return pass("")
	})
}

// largeInventory leaves room for the rest of a request within the limit.
const largeInventory = 3<<20 + 1<<19

// size: an inventory near the limit of a message is taken.
func size(ctx context.Context, k *kit) verdict {
	return k.with(ctx, func(ctx context.Context, h *supervisor.Supervisor) verdict {
		req := request(k.fleet.large(k.subjects[0].make(), largeInventory))
		if err := k.decide(ctx, h, req); err != nil {
			return fail("an inventory of %d bytes: %s", largeInventory, describe(err))
		}
		return pass("")
	})
}

// descriptorGrowth: many calls leave no files open.
func descriptorGrowth(ctx context.Context, k *kit) verdict {
	return k.with(ctx, func(ctx context.Context, h *supervisor.Supervisor) verdict {
		const calls, atOnce, slack = 100, 8, 16
		measure := func() (int, bool, error) {
			err := k.many(ctx, h, calls, min(atOnce, k.info.MaxInFlight))
			n, ok := descriptors(h.Info().PID)
			return n, ok, err
		}

		before, ok, err := measure()
		if err != nil {
			return fail("%s", describe(err))
		}
		if !ok {
			return skip("there is no /proc to count them in")
		}
		after, _, err := measure()
		if err != nil {
			return fail("%s", describe(err))
		}
		if after > before+slack {
			return fail("%d files were open after %d calls, %d after as many more", before, calls, after)
		}
		return pass("%d after %d calls", after, 2*calls)
	})
}

// validVersion is the host's rule for versions.
var validVersion = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+~^:-]{0,127}$`)

// release: each node gets a decision about its version, and outcomes are heard.
func release(ctx context.Context, k *kit) verdict {
	if !k.info.Has(helperv1.Capability_CAPABILITY_DECIDE_RELEASE) {
		return skip("CAPABILITY_DECIDE_RELEASE is not offered")
	}

	return k.with(ctx, func(ctx context.Context, h *supervisor.Supervisor) verdict {
		for _, s := range k.subjects {
			n := s.make()
			n.Csr, n.Ed25519 = nil, nil
			of := request(n)
			req := &helperv1.DecideReleaseRequest{RequestId: of.GetRequestId(), Node: n, Context: of.GetContext(), Record: &helperv1.Record{KnownGood: n.GetVersion()}}
			req.Context.FeatureUpgrades = true
			answer, err := h.DecideRelease(ctx, req)
			if err != nil {
				return fail("%s: %s", s.name, fault(status.Code(err), err))
			}
			again, err := h.DecideRelease(ctx, req)
			if err != nil || !proto.Equal(answer, again) {
				return fail("%s: the same request_id got different answers: %v, then %v, %v", s.name, answer, again, err)
			}
			if d := answer.GetUpgrade(); d != nil && !validVersion.MatchString(d.GetVersion()) {
				return fail("%s: %q is no version", s.name, d.GetVersion())
			}
			if v := answer.GetRollback().GetVersion(); v != "" && !validVersion.MatchString(v) {
				return fail("%s: %q is no version", s.name, v)
			}
			err = h.ReportOutcome(ctx, &helperv1.ReportOutcomeRequest{RequestId: req.GetRequestId(), Identity: n.GetIdentity(), Outcome: "provisioned", Version: n.GetVersion()})
			if err != nil {
				return fail("%s: ReportOutcome: %s", s.name, fault(status.Code(err), err))
			}
		}
		return pass("")
	})
}

// stdout: what stands there before the handshake fails the start; afterwards it
// is only logged.
func stdout(_ context.Context, k *kit) verdict {
	k.mu.Lock()
	defer k.mu.Unlock()

	if k.printed > 0 {
		return warn("%d lines were printed on standard output, which is not the place for them; the first: %q", k.printed, k.firstPrinted)
	}

	return pass("")
}

// shutdown: the end comes within its bound, also with calls in flight, and no
// process outlives it. It is the last check, for what any of them left.
func shutdown(ctx context.Context, k *kit) verdict {
	// On a busy machine the end may take longer than usual once, not always.
	const attempts = 3
	var (
		took time.Duration
		err  error
	)
	for range attempts {
		took, err = k.end(ctx)
		if len(k.left) > 0 {
			slices.Sort(k.left)
			return fail("processes outlived the helper: %s", strings.Join(slices.Compact(k.left), ", "))
		}
		if err == nil && took < supervisor.CloseGrace {
			return pass("within %v", took.Round(time.Millisecond))
		}
	}
	if err != nil {
		return fail("%v", err)
	}

	return warn("it did not end when it was asked to, and was killed after %v", took.Round(time.Millisecond))
}

// end ends a helper that is at work and returns the time it took.
func (k *kit) end(ctx context.Context) (time.Duration, error) {
	h, err := k.start(ctx, k.cfg.Supervisor)
	if err != nil {
		return 0, err
	}
	var calls sync.WaitGroup
	for i := range k.info.MaxInFlight {
		calls.Go(func() { _, _ = h.ConfigureNode(ctx, request(k.subjects[i%len(k.subjects)].make())) })
	}
	began := time.Now()
	err = h.Close()
	took := time.Since(began)
	calls.Wait()
	k.sweep()

	return took, err
}

// isExec says that the helper is the adapter of an exec helper.
func (k *kit) isExec() bool { return k.info.Has(helperv1.Capability_CAPABILITY_RAW_CLAIMS) }
