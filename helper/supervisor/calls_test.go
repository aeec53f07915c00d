package supervisor

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// boundless is a helper made without the SDK, which knows no limits.
type boundless struct {
	helperv1.UnimplementedNodeConfigurerServer
}

func (boundless) ConfigureNode(_ context.Context, req *helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error) {
	if req.GetNode().GetIdentity() == "busy" {
		return nil, status.Error(codes.ResourceExhausted, "all signers are busy")
	}
	return helper.Configure(map[string]string{"a": strings.Repeat("x", helper.MaxMessageSize)}), nil
}

// The limit on an answer and a helper's own RESOURCE_EXHAUSTED have one code,
// but not one meaning.
func TestReadErrorTellsTheLimit(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	helperv1.RegisterNodeConfigurerServer(s, boundless{})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() {
		s.Stop()
		<-served
	}()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(helper.MaxMessageSize)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	for identity, want := range map[string]error{"big": ErrTooLarge, "busy": nil} {
		_, err := helperv1.NewNodeConfigurerClient(conn).ConfigureNode(t.Context(), &helperv1.ConfigureNodeRequest{Node: &helperv1.Node{Identity: identity}})
		if status.Code(err) != codes.ResourceExhausted {
			t.Fatalf("%s: %v", identity, err)
		}
		err = readError(t.Context(), nil, err)
		if want != nil && !errors.Is(err, want) || want == nil && status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%s: got %v", identity, err)
		}
	}
}
