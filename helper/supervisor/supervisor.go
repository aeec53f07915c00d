// Package supervisor runs a helper plugin: it starts the process, calls it, and
// starts it again when it fails.
package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// The values of Config.MTLS.
const (
	// MTLSAuto has both sides make certificates for this one start.
	MTLSAuto = "auto"
	// MTLSOff is for plugins whose gRPC cannot use go-plugin's P-521
	// certificates; the mode 0700 of the socket's folder alone protects it.
	MTLSOff = "off"
)

// Config says what to run and how. Path is required.
type Config struct {
	// Path is the plugin's program, looked up in PATH when it has no slash, and
	// Args are its arguments.
	Path string
	Args []string
	// Name is what errors and log lines call the program; Path when it is empty.
	Name string
	// SHA256 is the hex checksum that the file must have; empty is any.
	SHA256 string
	// Env are variables added to the plugin's environment, which is else only
	// PATH, HOME, LANG and TMPDIR. InheritEnv passes the whole environment on.
	Env        map[string]string
	InheritEnv bool

	// Timeout ends a call, StartTimeout a start with its configuration; 10s each.
	Timeout      time.Duration
	StartTimeout time.Duration
	// MaxInFlight is how many calls run at once, 64; the plugin may ask for
	// less. More calls wait.
	MaxInFlight int
	// MTLS is MTLSAuto, which is the default, or MTLSOff.
	MTLS string

	// PluginConfig is a JSON object handed to the plugin; may be empty.
	PluginConfig json.RawMessage
	// AllowRawClaims grants CAPABILITY_RAW_CLAIMS. It is for the exec adapter:
	// raw claims hold the provisioning token.
	AllowRawClaims bool
	// HostVersion is told to the plugin.
	HostVersion string

	// Log takes the supervisor's and the plugin's lines; nil discards them.
	Log *logrus.Entry
	// Metrics is told what happens; nil is nobody.
	Metrics Metrics

	Restart Restart
	Health  Health

	pluginConfig *structpb.Struct
}

// Health says how a running helper is watched. A helper that hangs is found
// within Failures * (Interval + Timeout). A zero field takes its default.
type Health struct {
	// Interval lies between two checks, Timeout ends one; 5s and 3s.
	Interval time.Duration
	Timeout  time.Duration
	// Failures in a row make the helper restart; 2.
	Failures int
}

// Metrics is told what happens to a helper. Its methods are called from many
// goroutines and must not block.
type Metrics interface {
	// CallDone reports a call, by the method's name in the contract
	// ("ConfigureNode"). A call that found no helper running is reported with
	// codes.Unavailable.
	CallDone(method string, code codes.Code, d time.Duration)
	// Restarted reports a helper that failed and runs again.
	Restarted()
	// StateChanged reports the new state.
	StateChanged(State)
}

type noMetrics struct{}

func (noMetrics) CallDone(string, codes.Code, time.Duration) {}
func (noMetrics) Restarted()                                 {}
func (noMetrics) StateChanged(State)                         {}

// Info is what a helper said of itself when it was started last.
type Info struct {
	Name         string
	Build        string
	Capabilities []helperv1.Capability
	// MaxInFlight is the limit in force, the smaller of the host's and the
	// helper's.
	MaxInFlight  int
	ConfigSchema string
	// PID is the helper's process.
	PID int
}

// Has says whether the helper offers a capability.
func (i Info) Has(c helperv1.Capability) bool { return slices.Contains(i.Capabilities, c) }

// CloseGrace is what a helper has to end by itself when it is asked to.
const CloseGrace = 500 * time.Millisecond

// Supervisor runs one helper. Its methods may be called from many goroutines.
type Supervisor struct {
	cfg *Config

	// life ends with Close; running counts what Close waits for.
	life    context.Context
	end     context.CancelFunc
	running sync.WaitGroup

	mu    sync.Mutex
	state State
	inst  *instance
	info  Info
	// failure is why the helper failed last.
	failure error
}

// New checks the configuration and starts nothing.
func New(cfg Config) (*Supervisor, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}

	s := &Supervisor{cfg: &cfg}
	s.life, s.end = context.WithCancel(context.Background())

	return s, nil
}

func (c *Config) complete() error {
	if c.Path == "" {
		return errors.New("no helper program is set")
	}
	setDefault(&c.Name, c.Path)
	setDefault(&c.MTLS, MTLSAuto)
	if c.MTLS != MTLSAuto && c.MTLS != MTLSOff {
		return fmt.Errorf("mtls is %q, not %s or %s", c.MTLS, MTLSAuto, MTLSOff)
	}

	c.pluginConfig = &structpb.Struct{}
	if len(c.PluginConfig) > 0 {
		if err := protojson.Unmarshal(c.PluginConfig, c.pluginConfig); err != nil {
			return fmt.Errorf("the helper's configuration is no JSON object: %w", err)
		}
	}

	setDefault(&c.Timeout, 10*time.Second)
	setDefault(&c.StartTimeout, 10*time.Second)
	setDefault(&c.MaxInFlight, 64)
	setDefault(&c.Health.Interval, 5*time.Second)
	setDefault(&c.Health.Timeout, 3*time.Second)
	setDefault(&c.Health.Failures, 2)
	c.Restart = c.Restart.withDefaults()
	if c.Metrics == nil {
		c.Metrics = noMetrics{}
	}
	if c.Log == nil {
		discard := logrus.New()
		discard.SetOutput(io.Discard)
		c.Log = logrus.NewEntry(discard)
	}

	return nil
}

// environment is the plugin's, without what go-plugin adds.
func (c *Config) environment() []string {
	var env []string
	if c.InheritEnv {
		env = os.Environ()
	} else {
		for _, k := range []string{"PATH", "HOME", "LANG", "TMPDIR"} {
			if v, ok := os.LookupEnv(k); ok {
				env = append(env, k+"="+v)
			}
		}
	}
	for k, v := range c.Env {
		env = append(env, k+"="+v)
	}

	return env
}

// readInfo takes a helper's word for what it is, but grants it raw claims only
// if the host does.
func (c *Config) readInfo(resp *helperv1.GetInfoResponse, pid int) Info {
	info := Info{
		Name:         resp.GetName(),
		Build:        resp.GetBuild(),
		Capabilities: slices.Clone(resp.GetCapabilities()),
		MaxInFlight:  c.MaxInFlight,
		ConfigSchema: resp.GetConfigSchema(),
		PID:          pid,
	}
	if own := int(resp.GetMaxInFlight()); own > 0 {
		info.MaxInFlight = min(own, info.MaxInFlight)
	}

	raw := helperv1.Capability_CAPABILITY_RAW_CLAIMS
	if !c.AllowRawClaims && info.Has(raw) {
		c.Log.Warnf("helper %s asks for raw claims, which only an exec helper gets", info.Name)
		info.Capabilities = slices.DeleteFunc(info.Capabilities, func(have helperv1.Capability) bool { return have == raw })
	}

	return info
}

// Start starts the helper, once, and keeps it running until Close. It returns
// when the helper is configured. An error leaves no process behind. ctx ends
// the start alone.
func (s *Supervisor) Start(ctx context.Context) error {
	s.mu.Lock()
	if s.state != Stopped {
		defer s.mu.Unlock()
		return fmt.Errorf("helper: started in state %v", s.state)
	}
	s.setState(Starting)
	s.running.Add(1)
	s.mu.Unlock()

	if s.cfg.MTLS == MTLSOff {
		s.cfg.Log.Warn("mtls is off: the mode of its folder alone protects the helper's socket")
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()

	inst, err := startInstance(ctx, s.cfg)
	if err != nil {
		s.enter(Stopped, nil)
		s.running.Done()
		return fmt.Errorf("start of helper %s: %w", s.cfg.Name, err)
	}

	s.cfg.Log.Infof("helper %s %q runs, pid %d", inst.info.Name, inst.info.Build, inst.info.PID)
	s.enter(Running, inst)
	go func() {
		defer s.running.Done()
		s.supervise(inst)
	}()

	return nil
}

// supervise keeps a helper running until the supervisor is closed.
func (s *Supervisor) supervise(inst *instance) {
	past := failures{policy: s.cfg.Restart}
	for {
		why := inst.watch(s.life)
		if s.life.Err() != nil {
			s.enter(Closed, nil)
			inst.stop(CloseGrace)
			return
		}

		s.setFailure(why)
		s.enter(Restarting, nil)
		inst.stop(0)
		if inst = s.restart(&past, why); inst == nil {
			return
		}
		s.cfg.Log.Warnf("helper %s %q runs again, pid %d", inst.info.Name, inst.info.Build, inst.info.PID)
		s.cfg.Metrics.Restarted()
		s.enter(Running, inst)
	}
}

// restart tries until a helper runs, or returns nil when the supervisor is closed.
func (s *Supervisor) restart(past *failures, why error) *instance {
	for {
		wait, loop := past.add(time.Now())
		if loop {
			s.cfg.Log.Errorf("%v; it failed %d times within %v, next start in %v", why, s.cfg.Restart.Limit, s.cfg.Restart.Window, wait)
			s.enter(CrashLoop, nil)
		} else {
			s.cfg.Log.Errorf("%v; next start in %v", why, wait)
			s.enter(Restarting, nil)
		}

		select {
		case <-s.life.Done():
			return nil
		case <-time.After(wait):
		}

		inst, err := startInstance(s.life, s.cfg)
		if err == nil {
			return inst
		}
		if s.life.Err() != nil {
			return nil
		}
		why = fmt.Errorf("start of helper %s: %w", s.cfg.Name, err)
		s.setFailure(why)
	}
}

// current is the helper that calls go to, or nil, and the state.
func (s *Supervisor) current() (*instance, State) {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.inst, s.state
}

// Info is what the helper said of itself when it was started last; zero before
// the first start.
func (s *Supervisor) Info() Info {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.info
}

// Failure is why a helper that was running, or was started again, failed last;
// nil when none did.
func (s *Supervisor) Failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.failure
}

func (s *Supervisor) setFailure(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.failure = why
}

// State is what the supervisor is doing.
func (s *Supervisor) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.state
}

// Healthy says whether calls are answered.
func (s *Supervisor) Healthy() bool { return s.State() == Running }

// Close ends the helper and its children, for good, within about a second. Calls
// in flight fail. It may be called at any time and more than once.
func (s *Supervisor) Close() error {
	s.end()
	s.enter(Closed, nil)

	done := make(chan struct{})
	go func() {
		defer close(done)
		s.running.Wait()
	}()

	const bound = CloseGrace + 2*stopMargin
	select {
	case <-done:
		return nil
	case <-time.After(bound):
		return fmt.Errorf("the helper has not ended within %v", bound)
	}
}

// enter changes the state and the helper that calls go to. Once closed, none.
func (s *Supervisor) enter(state State, inst *instance) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.state == Closed {
		return
	}
	s.inst = inst
	if inst != nil {
		s.info = inst.info
	}
	s.setState(state)
}

// setState is called with the lock held.
func (s *Supervisor) setState(state State) {
	if s.state == state {
		return
	}
	s.state = state
	s.cfg.Metrics.StateChanged(state)
}
