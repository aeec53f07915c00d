package helper

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// Serve runs the plugin until the host ends it; a helper's main calls it and
// does its own cleaning up afterwards. A plugin that was started by hand, or
// that is not complete, ends the process with code 1 and says why.
//
// Standard output belongs to the handshake until Serve was called: print
// nothing before it.
func Serve(p *Plugin) {
	err := p.check()
	if err == nil && os.Getenv(MagicCookieKey) != MagicCookieValue {
		err = fmt.Errorf("this is a helper plugin of the Choria Provisioner, which starts it; to try it: choria-provisioner helper call %s --input node.json", os.Args[0])
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", p.Name, err)
		os.Exit(1)
	}

	// While it serves, go-plugin sends what is written to os.Stdout and os.Stderr
	// over gRPC. The logger keeps the real standard error, where the host reads
	// levels, and what the plugin says afterwards must still come out.
	stdout, stderr := os.Stdout, os.Stderr
	defer func() { os.Stdout, os.Stderr = stdout, stderr }()

	log := newLogger(p.Name, stderr)
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: Handshake(),
		Plugins:         plugin.PluginSet{pluginName: &registration{plugin: p}},
		GRPCServer:      func(opts []grpc.ServerOption) *grpc.Server { return newServer(log, opts) },
		Logger:          log.Named("go-plugin"),
	})
}

// pluginName is the one entry of go-plugin's set; it never goes over the wire.
const pluginName = "helper"

func newLogger(name string, w io.Writer) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Name: name, Level: hclog.Debug, Output: w, JSONFormat: true})
}

// registration puts the services of a plugin on go-plugin's server. go-plugin
// itself serves grpc.health.v1 there, with the overall status.
type registration struct {
	plugin.NetRPCUnsupportedPlugin

	plugin *Plugin
}

func (r *registration) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	register(s, r.plugin)
	return nil
}

func (r *registration) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, status.Error(codes.Unimplemented, "this side only serves")
}

func register(s grpc.ServiceRegistrar, p *Plugin) {
	helperv1.RegisterHelperInfoServer(s, &infoService{plugin: p})
	helperv1.RegisterNodeConfigurerServer(s, &configurerService{plugin: p})
	if p.DecideRelease != nil {
		helperv1.RegisterReleaseDeciderServer(s, &deciderService{plugin: p})
	}
}

// newServer makes a server that keeps the limits of the contract.
func newServer(log hclog.Logger, opts []grpc.ServerOption) *grpc.Server {
	return grpc.NewServer(append(opts,
		grpc.MaxRecvMsgSize(MaxMessageSize),
		grpc.ChainUnaryInterceptor(withLogger(log), recoverPanic, limitAnswer),
	)...)
}

// withLogger gives each call a logger that names the node.
func withLogger(log hclog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		l := log
		if r, ok := req.(interface{ GetNode() *helperv1.Node }); ok {
			l = l.With("identity", r.GetNode().GetIdentity())
		}
		if r, ok := req.(interface{ GetRequestId() string }); ok {
			l = l.With("request_id", r.GetRequestId())
		}

		return next(hclog.WithContext(ctx, l), req)
	}
}

// recoverPanic keeps one node from ending the helper for all.
func recoverPanic(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if r := recover(); r != nil {
			hclog.FromContext(ctx).Error("panic", "method", info.FullMethod, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			resp, err = nil, status.Errorf(codes.Internal, "panic: %v", r)
		}
	}()

	return next(ctx, req)
}

// limitAnswer refuses an answer over the limit here, as a fault of the helper:
// gRPC's own limit would say RESOURCE_EXHAUSTED, which the host takes for a
// passing fault and asks again for ever.
func limitAnswer(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	resp, err := next(ctx, req)
	if m, ok := resp.(proto.Message); ok && err == nil {
		if n := proto.Size(m); n > MaxMessageSize {
			return nil, status.Errorf(codes.Internal, "the answer has %d bytes, more than the limit of %d", n, MaxMessageSize)
		}
	}

	return resp, err
}
