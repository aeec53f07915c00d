// Command broken is a helper made without the SDK, which breaks the one rule of
// the contract that its argument names.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

func main() {
	b := &broken{fault: os.Args[1]}
	handshake := helper.Handshake()
	switch b.fault {
	case "prints-first":
		fmt.Println("helper of site lon1 starting")
	case "ends-at-once":
		fmt.Fprintln(os.Stderr, "no licence")
		os.Exit(3)
	case "never-greets":
		time.Sleep(time.Hour)
	case "protocol-version":
		handshake.ProtocolVersion++
	case "leaves-a-child":
		// A daemon: it leaves the session that the host would end.
		child := exec.Command("sleep", "600")
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := child.Start(); err != nil {
			panic(err)
		}
	case "ignores-its-end":
		defer time.Sleep(time.Hour)
	}

	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: handshake,
		Plugins:         plugin.PluginSet{"helper": &registration{broken: b}},
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(opts, grpc.UnaryInterceptor(b.health))...)
		},
	})
}

type registration struct {
	plugin.NetRPCUnsupportedPlugin

	broken *broken
}

func (r *registration) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	helperv1.RegisterHelperInfoServer(s, &info{broken: r.broken})
	helperv1.RegisterNodeConfigurerServer(s, r.broken)
	helperv1.RegisterReleaseDeciderServer(s, &decider{broken: r.broken})
	return nil
}

func (r *registration) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, status.Error(codes.Unimplemented, "this side only serves")
}

type info struct {
	helperv1.UnimplementedHelperInfoServer
	broken *broken
}

func (i *info) GetInfo(context.Context, *helperv1.GetInfoRequest) (*helperv1.GetInfoResponse, error) {
	r := &helperv1.GetInfoResponse{Name: "broken", Build: "1", MaxInFlight: 8, Capabilities: []helperv1.Capability{helperv1.Capability_CAPABILITY_CONFIGURE}}
	switch i.broken.fault {
	case "no-name":
		r.Name = ""
	case "no-build":
		r.Build = ""
	case "schema":
		r.ConfigSchema = "type: object"
	case "no-release", "bad-version":
		r.Capabilities = append(r.Capabilities, helperv1.Capability_CAPABILITY_DECIDE_RELEASE)
	}

	return r, nil
}

func (i *info) Validate(_ context.Context, req *helperv1.ValidateRequest) (*helperv1.ValidateResponse, error) {
	for k := range req.GetConfig().GetFields() {
		switch i.broken.fault {
		case "accepts-any-key":
		case "wrong-code-for-a-key":
			return nil, status.Errorf(codes.Internal, "unknown key %s", k)
		default:
			return nil, status.Errorf(codes.InvalidArgument, "unknown key %s", k)
		}
	}

	return &helperv1.ValidateResponse{}, nil
}

func (i *info) Configure(context.Context, *helperv1.ConfigureRequest) (*helperv1.ConfigureResponse, error) {
	if i.broken.fault == "cannot-be-configured" {
		return nil, status.Error(codes.FailedPrecondition, "the inventory is down")
	}

	return &helperv1.ConfigureResponse{}, nil
}

type decider struct {
	helperv1.UnimplementedReleaseDeciderServer
	broken *broken
}

func (d *decider) DecideRelease(context.Context, *helperv1.DecideReleaseRequest) (*helperv1.DecideReleaseResponse, error) {
	if d.broken.fault == "bad-version" {
		return helper.Upgrade("; reboot", ""), nil
	}

	return &helperv1.DecideReleaseResponse{}, nil
}

type broken struct {
	helperv1.UnimplementedNodeConfigurerServer
	fault string

	calls atomic.Int64
	mu    sync.Mutex
	last  string
	files []*os.File
}

func (b *broken) health(ctx context.Context, req any, call *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if !strings.HasSuffix(call.FullMethod, ".Health/Check") {
		return next(ctx, req)
	}
	if b.fault == "not-serving" || b.fault == "falls-ill" && b.calls.Load() > 0 {
		return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_NOT_SERVING}, nil
	}

	return next(ctx, req)
}

func (b *broken) ConfigureNode(ctx context.Context, req *helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error) {
	identity := req.GetNode().GetIdentity()
	calls := b.calls.Add(1)
	c := &helperv1.Configure{Configuration: map[string]string{"identity": identity}}

	switch b.fault {
	case "never-answers":
		time.Sleep(time.Hour)
	case "unset":
		return &helperv1.ConfigureNodeResponse{}, nil
	case "dies-on-every-third":
		if calls%3 == 0 {
			panic("no such site")
		}
	case "fault-on-every-third":
		if calls%3 == 0 {
			return nil, status.Error(codes.Internal, "no such site")
		}
	case "plain-error":
		return nil, fmt.Errorf("no such site")
	case "passing-fault":
		return nil, status.Error(codes.Unavailable, "the CA is down")
	case "unknown-code":
		return nil, status.Error(77, "?")
	case "refuses-all":
		return nil, status.Error(codes.NotFound, "no such node")
	case "refuses-some":
		if len(req.GetNode().GetFactsJson()) == 0 {
			return nil, status.Error(codes.InvalidArgument, "no facts")
		}
	case "empty":
		c.Configuration = nil
	case "line-break":
		c.Configuration["site"] = "lon1\nrpcauthorization = 0"
	case "provisioning-on":
		c.Configuration["plugin.choria.server.provision"] = "true"
	case "policy-suffix":
		c.ActionPolicies = map[string]string{"rpcutil": "policy default deny"}
	case "oversize":
		c.Configuration["motd"] = strings.Repeat("x", helper.MaxMessageSize)
	case "certificate":
		c.CertificatePem = "certificate"
	case "no-unknown-fields":
		if len(req.ProtoReflect().GetUnknown()) > 0 {
			return nil, status.Error(codes.Internal, "unknown field")
		}
	case "answers-change":
		c.Configuration["time"] = time.Now().String()
	case "mixes-nodes":
		// One variable for all calls.
		b.mu.Lock()
		b.last = identity
		b.mu.Unlock()
		time.Sleep(time.Millisecond)
		b.mu.Lock()
		c.Configuration["identity"] = b.last
		b.mu.Unlock()
	case "blocks-others":
		// It does not look at the deadline, and holds what the others need.
		b.mu.Lock()
		if at, _ := ctx.Deadline(); time.Until(at) < 100*time.Millisecond {
			time.Sleep(time.Hour)
		}
		b.mu.Unlock()
	case "small-limit":
		if len(req.GetNode().GetInventoryJson()) > 1<<20 {
			return nil, status.Error(codes.ResourceExhausted, "larger than 1048576")
		}
	case "leaks-files":
		f, err := os.Open(os.DevNull)
		if err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		b.mu.Lock()
		b.files = append(b.files, f)
		b.mu.Unlock()
	case "prints-later":
		fmt.Println("configured", identity)
	case "falls-ill":
		time.Sleep(1500 * time.Millisecond)
	}

	return helper.ConfigureWith(c), nil
}
