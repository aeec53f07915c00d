// Package testplugin is a helper that behaves as a test tells it to.
package testplugin

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// Config is the configuration of the plugin.
type Config struct {
	// Fail makes Configure fail with this text, Warn makes Validate warn.
	Fail string `json:"fail"`
	Warn string `json:"warn"`
}

// New returns the plugin. It answers by the identity's first word:
//
//	ok           the configuration {"identity": identity}
//	echo         what it was sent and runs in
//	defer, shutdown, nothing
//	busy         UNAVAILABLE
//	plain        an error that is no status
//	panic        a panic
//	big          an answer over the limit
//	hang         no answer before the deadline
//	log          a line at each level, and on both streams
//	flood        long and malformed lines on the process's own outputs, then as ok
//	torrent      100 MB on the process's own output: "torrent stdout line" is one
//	             line, "torrent stderr lines" are lines of 64 KiB; then as ok
//	exit         the end of the process
//	third        as ok, but every third call ends the process by a panic
func New() *helper.Plugin {
	p := &testPlugin{}
	return &helper.Plugin{
		Name:          "test-plugin",
		Build:         "1.2.3",
		MaxInFlight:   8,
		ConfigureNode: p.configureNode,
		DecideRelease: func(_ context.Context, req *helperv1.DecideReleaseRequest) (*helperv1.DecideReleaseResponse, error) {
			return helper.Upgrade("2.0.0", "newer than "+req.GetNode().GetVersion()), nil
		},
		ReportOutcome: func(_ context.Context, req *helperv1.ReportOutcomeRequest) error {
			return status.Errorf(codes.NotFound, "outcome %s", req.GetOutcome())
		},
		Validate: func(_ context.Context, s *structpb.Struct) ([]string, error) {
			var cfg Config
			if err := helper.DecodeConfig(s, &cfg); err != nil {
				return nil, err
			}
			if cfg.Warn != "" {
				return []string{cfg.Warn}, nil
			}
			return nil, nil
		},
		Configure: func(_ context.Context, s *structpb.Struct) error {
			var cfg Config
			if err := helper.DecodeConfig(s, &cfg); err != nil {
				return err
			}
			if cfg.Fail != "" {
				return status.Error(codes.FailedPrecondition, cfg.Fail)
			}
			return nil
		},
	}
}

type testPlugin struct {
	calls atomic.Int64
}

func (p *testPlugin) configureNode(ctx context.Context, req *helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error) {
	identity := req.GetNode().GetIdentity()
	word, _, _ := strings.Cut(identity, " ")
	switch word {
	case "echo":
		deadline, _ := ctx.Deadline()
		return helper.Configure(map[string]string{
			"request_id": req.GetRequestId(),
			"claims":     string(req.GetNode().GetProvisioningClaimsJson()),
			"raw_claims": string(req.GetNode().GetRawClaimsJson()),
			"env":        strings.Join(os.Environ(), "\n"),
			"seconds":    fmt.Sprint(int(time.Until(deadline).Seconds())),
		}), nil
	case "defer":
		return helper.Defer("not yet", time.Minute), nil
	case "shutdown":
		return helper.Shutdown("not wanted"), nil
	case "nothing":
		return nil, nil
	case "busy":
		return nil, status.Error(codes.Unavailable, "the CA is down")
	case "plain":
		return nil, fmt.Errorf("plain error")
	case "panic":
		panic("no such site")
	case "big":
		return helper.Configure(map[string]string{"a": strings.Repeat("x", helper.MaxMessageSize)}), nil
	case "hang":
		<-ctx.Done()
		return nil, ctx.Err()
	case "log":
		log := hclog.FromContext(ctx)
		log.Debug("at debug")
		log.Warn("at warn", "ca", "local")
		log.Error("at error")
		fmt.Fprintln(os.Stdout, "on stdout")
		fmt.Fprintln(os.Stderr, "on stderr")
		return helper.Configure(map[string]string{"a": "b"}), nil
	case "flood":
		// Past go-plugin's replacements of the two streams.
		line := strings.Repeat("x", 200<<10)
		for _, fd := range []uintptr{1, 2} {
			w := os.NewFile(fd, "")
			for range 20 {
				fmt.Fprintln(w, line)
				fmt.Fprintln(w, `{"@message":1,"@level":[],"@timestamp":{}}`)
			}
		}
	case "torrent":
		torrent(identity)
	case "exit":
		os.Exit(7)
	case "third":
		if p.calls.Add(1)%3 == 0 {
			// Not in the call itself, whose panics the SDK catches.
			go panic("no such site")
			select {}
		}
	}

	return helper.Configure(map[string]string{"identity": identity}), nil
}

func torrent(identity string) {
	words := strings.Fields(identity)
	// Past go-plugin's replacements of the two streams.
	w := os.NewFile(1, "")
	if words[1] == "stderr" {
		w = os.NewFile(2, "")
	}

	const size, piece = 100_000_000, 64 << 10
	b := bytes.Repeat([]byte("x"), piece)
	if words[2] == "lines" {
		b[piece-1] = '\n'
	}
	for range size / piece {
		if _, err := w.Write(b); err != nil {
			panic(err)
		}
	}
	fmt.Fprintln(w)
}
