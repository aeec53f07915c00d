package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// instance is one started helper. It is never started again: go-plugin's
// client serves one start.
type instance struct {
	cfg    *Config
	proc   *process
	client *plugin.Client
	dir    string
	info   Info

	health     grpc_health_v1.HealthClient
	helperInfo helperv1.HelperInfoClient
	configurer helperv1.NodeConfigurerClient
	decider    helperv1.ReleaseDeciderClient

	// slots holds one entry for each call in flight.
	slots chan struct{}
}

// startInstance starts a helper and configures it. An error leaves no process
// and no file.
func startInstance(ctx context.Context, cfg *Config) (*instance, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.StartTimeout, fmt.Errorf("not ready within %v", cfg.StartTimeout))
	defer cancel()

	path, err := findProgram(cfg.Path)
	if err != nil {
		return nil, err
	}
	var pinned *pin
	if cfg.SHA256 != "" {
		if pinned, err = checkSum(path, cfg.SHA256); err != nil {
			return nil, err
		}
	}
	dir, err := socketDir()
	if err != nil {
		return nil, err
	}

	i := &instance{cfg: cfg, dir: dir}
	i.proc = newProcess(path, cfg.Args, cfg.environment(), cfg.Log.WithField("helper", filepath.Base(cfg.Name)))
	i.client = plugin.NewClient(i.clientConfig())

	// Closed even if not yet configured, else its process is orphaned.
	err = i.connect(ctx)
	if err == nil && pinned != nil {
		err = pinned.stillThere()
	}
	if err == nil {
		err = i.introduce(ctx)
	}
	if err != nil {
		err = i.explain(ctx, err)
		i.stop(0)
		return nil, err
	}

	return i, nil
}

// name is the helper's name, or its file's until it said its own.
func (i *instance) name() string {
	if i.info.Name != "" {
		return i.info.Name
	}

	return filepath.Base(i.cfg.Name)
}

// findProgram resolves the path once, so that what is checked is what is run.
func findProgram(path string) (string, error) {
	found, err := exec.LookPath(path)
	if err != nil {
		return "", err
	}

	return filepath.Abs(found)
}

// socketDir makes the private folder in which the plugin's socket lives.
func socketDir() (string, error) {
	dir, err := os.MkdirTemp("", "cph-")
	if err != nil {
		return "", fmt.Errorf("folder for the helper's socket: %w", err)
	}

	// go-plugin adds "/plugin-dirN/pluginN" with two numbers of up to 10 digits;
	// the address of a Unix socket has 108 bytes on Linux, 104 elsewhere.
	const added, limit = 38, 103
	if len(dir)+added > limit {
		return "", errors.Join(fmt.Errorf("the folder for the helper's socket, %s, is %d bytes too long for a Unix socket: set TMPDIR to a shorter path", dir, len(dir)+added-limit), os.Remove(dir))
	}

	return dir, nil
}

func (i *instance) clientConfig() *plugin.ClientConfig {
	return &plugin.ClientConfig{
		HandshakeConfig: helper.Handshake(),
		// go-plugin wants a set to agree on a version; the connection is used as it is.
		Plugins:          plugin.PluginSet{},
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		RunnerFunc: func(_ hclog.Logger, spec *exec.Cmd, _ string) (runner.Runner, error) {
			i.proc.env = append(i.proc.env, spec.Env...)
			return i.proc, nil
		},
		SkipHostEnv:      true,
		StartTimeout:     i.cfg.StartTimeout,
		AutoMTLS:         i.cfg.MTLS == MTLSAuto,
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: i.dir},
		Logger:           newGoPluginLogger(i.cfg.Log),
		SyncStdout:       i.proc.output("stdout"),
		SyncStderr:       i.proc.output("stderr"),
		GRPCDialOptions: []grpc.DialOption{
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(helper.MaxMessageSize)),
		},
	}
}

// connect starts the process and connects to it. go-plugin knows no context and
// panics on some greetings.
func (i *instance) connect(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = i.proc.Kill(ctx) })
	defer stop()

	conn, err := func() (conn *grpc.ClientConn, err error) {
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("the handshake failed: %v", r)
			}
		}()
		protocol, err := i.client.Client()
		if err != nil {
			return nil, err
		}
		return protocol.(*plugin.GRPCClient).Conn, nil
	}()
	if err != nil {
		return err
	}

	i.health = grpc_health_v1.NewHealthClient(conn)
	i.helperInfo = helperv1.NewHelperInfoClient(conn)
	i.configurer = helperv1.NewNodeConfigurerClient(conn)
	i.decider = helperv1.NewReleaseDeciderClient(conn)

	return nil
}

// introduce learns what the helper is and hands it its configuration.
func (i *instance) introduce(ctx context.Context) error {
	if err := i.checkHealth(ctx); err != nil {
		return err
	}

	resp, err := i.helperInfo.GetInfo(ctx, &helperv1.GetInfoRequest{HostVersion: i.cfg.HostVersion})
	if err != nil {
		return &callError{i.name(), "GetInfo", err}
	}
	if err := helper.CheckInfo(resp); err != nil {
		return fmt.Errorf("helper %s: GetInfo: %w", i.name(), err)
	}
	i.info = i.cfg.readInfo(resp, i.proc.pid)
	i.slots = make(chan struct{}, i.info.MaxInFlight)

	return i.configure(ctx)
}

func (i *instance) configure(ctx context.Context) error {
	if !i.info.Has(helperv1.Capability_CAPABILITY_CONFIGURE) {
		if len(i.cfg.pluginConfig.GetFields()) > 0 {
			return fmt.Errorf("helper %s takes no configuration, but one is set", i.name())
		}
		return nil
	}

	valid, err := i.helperInfo.Validate(ctx, &helperv1.ValidateRequest{Config: i.cfg.pluginConfig})
	if err != nil && status.Code(err) != codes.Unimplemented {
		return &callError{i.name(), "Validate", err}
	}
	for _, w := range valid.GetWarnings() {
		i.cfg.Log.Warnf("configuration of helper %s: %s", i.name(), w)
	}

	_, err = i.helperInfo.Configure(ctx, &helperv1.ConfigureRequest{Config: i.cfg.pluginConfig})
	if err != nil && status.Code(err) != codes.Unimplemented {
		return &callError{i.name(), "Configure", err}
	}

	return nil
}

// explain says why a start failed in terms of what the operator can change.
func (i *instance) explain(ctx context.Context, err error) error {
	var why []string
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case i.endedEarly():
		err = fmt.Errorf("it ended before it was ready: %s", exitText(i.proc.err))
	case strings.Contains(err.Error(), "Unrecognized remote plugin message"):
		why = append(why, "standard output belongs to the handshake, a plugin prints nothing before it")
	case strings.Contains(err.Error(), "authentication handshake failed"):
		why = append(why, "a plugin whose gRPC has no go-plugin mTLS needs mtls: off")
	}
	if last := i.proc.lastWords(); last != "" {
		why = append(why, "last on standard error: "+last)
	}
	if len(why) == 0 {
		return err
	}

	return fmt.Errorf("%w (%s)", err, strings.Join(why, "; "))
}

// endedEarly gives a process whose output has ended the moment it takes to end too.
func (i *instance) endedEarly() bool {
	select {
	case <-i.proc.exited:
	case <-time.After(drainTime):
	}

	return i.proc.endedByItself()
}

func exitText(err error) string {
	if err == nil {
		return "exit status 0"
	}

	return err.Error()
}

// checkHealth asks for the overall status. go-plugin's own Ping has no deadline
// and takes NOT_SERVING for health.
func (i *instance) checkHealth(ctx context.Context) error {
	resp, err := i.health.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		return &callError{i.name(), "health check", err}
	}
	if s := resp.GetStatus(); s != grpc_health_v1.HealthCheckResponse_SERVING {
		return fmt.Errorf("helper %s: health check: it says %v", i.name(), s)
	}

	return nil
}

// watch returns when the helper has ended or is not healthy, with the reason,
// or when ctx is done.
func (i *instance) watch(ctx context.Context) error {
	tick := time.NewTicker(i.cfg.Health.Interval)
	defer tick.Stop()

	failed := 0
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-i.proc.exited:
			return fmt.Errorf("helper %s ended: %s", i.name(), exitText(i.proc.err))
		case <-tick.C:
		}

		checkCtx, cancel := context.WithTimeout(ctx, i.cfg.Health.Timeout)
		err := i.checkHealth(checkCtx)
		cancel()
		switch {
		case err == nil:
			failed = 0
		case i.proc.hasExited() || ctx.Err() != nil:
		default:
			failed++
			i.cfg.Log.Warnf("%v (%d of %d)", err, failed, i.cfg.Health.Failures)
			if failed >= i.cfg.Health.Failures {
				return err
			}
		}
	}
}

// stop ends the helper and its children: asked to end it has the grace, then it
// is killed. It returns within the grace and stopMargin.
func (i *instance) stop(grace time.Duration) {
	done := make(chan struct{})
	if grace == 0 {
		_ = i.proc.Kill(context.Background())
	}
	go func() {
		defer close(done)
		// Kill asks first, without a deadline: the process group's end is what
		// ends it when the helper does not listen.
		i.client.Kill()
	}()

	select {
	case <-done:
	case <-time.After(grace):
	}
	_ = i.proc.Kill(context.Background())
	select {
	case <-done:
	case <-time.After(stopMargin):
		i.cfg.Log.Errorf("helper %s, pid %s, cannot be killed", i.name(), i.proc.ID())
	}

	if err := os.RemoveAll(i.dir); err != nil {
		i.cfg.Log.Warnf("folder of the helper's socket: %v", err)
	}
}

// stopMargin is what a killed process has to vanish.
const stopMargin = 500 * time.Millisecond

// enter takes a place among the calls in flight.
func (i *instance) enter(ctx context.Context) error {
	select {
	case i.slots <- struct{}{}:
		return nil
	case <-i.proc.exited:
		return ErrUnavailable
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

func (i *instance) leave() { <-i.slots }
