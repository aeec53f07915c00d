package status

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/sirupsen/logrus"
)

const (
	// ServiceName is the name of the micro service, and the first part of its
	// subjects.
	ServiceName = "choria_provisioner"
	// subject is where all instances answer.
	subject = ServiceName + ".status"
	// lookInterval is how often the service is looked at: the library stops it
	// by itself when it was too slow for its messages.
	lookInterval = time.Second
)

// instanceSubject is where one instance answers.
func instanceSubject(instance string) string {
	return ServiceName + ".instance." + instance + ".status"
}

// Service answers for one instance.
type Service struct {
	// Connect waits for a connection; the context it returns ends when another
	// one is to be used.
	Connect func(ctx context.Context) (*nats.Conn, context.Context, error)
	// Status is what is answered. It must not block.
	Status func() Status
	Log    *logrus.Entry
}

// Run answers over one connection after the other until ctx ends.
func (s *Service) Run(ctx context.Context) {
	for ctx.Err() == nil {
		nc, session, err := s.Connect(ctx)
		if err != nil {
			return
		}
		service, err := s.add(nc)
		if err != nil {
			// A connection that dropped meanwhile comes back as another one.
			if !nc.IsClosed() {
				s.Log.Warnf("Could not add the status service, trying again: %v", err)
			}
			wait(ctx, session, lookInterval)
			continue
		}
		for ctx.Err() == nil && session.Err() == nil && !service.Stopped() {
			wait(ctx, session, lookInterval)
		}
		if err := service.Stop(); err != nil && !nc.IsClosed() {
			s.Log.Debugf("Stopping the status service: %v", err)
		}
	}
}

func wait(ctx, session context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-session.Done():
	}
}

// add makes the service on a connection.
func (s *Service) add(nc *nats.Conn) (micro.Service, error) {
	now := s.Status()
	service, err := micro.AddService(nc, micro.Config{
		Name:        ServiceName,
		Version:     semantic(now.Build),
		Description: "Choria Provisioner",
		Metadata: map[string]string{
			"instance": now.Instance,
			"identity": now.Identity,
			"site":     now.Site,
			"build":    now.Build,
			"digest":   now.Digest,
		},
		// Everybody is asked, not anybody.
		QueueGroupDisabled: true,
	})
	if err != nil {
		return nil, err
	}
	for name, at := range map[string]string{"status": subject, "instance": instanceSubject(now.Instance)} {
		if err := service.AddEndpoint(name, micro.HandlerFunc(s.answer), micro.WithEndpointSubject(at)); err != nil {
			_ = service.Stop()
			return nil, fmt.Errorf("endpoint %s: %w", name, err)
		}
	}

	return service, nil
}

func (s *Service) answer(request micro.Request) {
	text, err := json.Marshal(s.Status().bounded())
	if err == nil {
		err = request.Respond(text)
	} else {
		err = request.Error("500", err.Error(), nil)
	}
	if err != nil {
		s.Log.Debugf("Answering for our status: %v", err)
	}
}

// semantic is a build as the library wants it: a version by semver.org. The
// build itself is in the metadata.
func semantic(build string) string {
	if regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]*[A-Za-z-][0-9A-Za-z-]*)?$`).MatchString(build) {
		return build
	}

	return "0.0.0-other"
}
