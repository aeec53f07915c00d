package helper

import (
	"io"

	"google.golang.org/grpc"
)

// NewServer serves a plugin without a process, and logs to w.
func NewServer(p *Plugin, w io.Writer) *grpc.Server {
	s := newServer(newLogger(p.Name, w), nil)
	register(s, p)
	return s
}

// Check exposes the check of a plugin's completeness.
func (p *Plugin) Check() error { return p.check() }
