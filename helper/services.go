package helper

import (
	"context"

	"github.com/hashicorp/go-hclog"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// The three services of the contract over a Plugin.

type infoService struct {
	helperv1.UnimplementedHelperInfoServer
	plugin *Plugin
}

func (s *infoService) GetInfo(ctx context.Context, req *helperv1.GetInfoRequest) (*helperv1.GetInfoResponse, error) {
	hclog.FromContext(ctx).Debug("asked by host", "host_version", req.GetHostVersion())
	return s.plugin.info(), nil
}

func (s *infoService) Validate(ctx context.Context, req *helperv1.ValidateRequest) (*helperv1.ValidateResponse, error) {
	if s.plugin.Validate == nil {
		return s.UnimplementedHelperInfoServer.Validate(ctx, req)
	}

	warnings, err := s.plugin.Validate(ctx, req.GetConfig())
	if err != nil {
		return nil, err
	}
	return &helperv1.ValidateResponse{Warnings: warnings}, nil
}

func (s *infoService) Configure(ctx context.Context, req *helperv1.ConfigureRequest) (*helperv1.ConfigureResponse, error) {
	if s.plugin.Configure == nil {
		return s.UnimplementedHelperInfoServer.Configure(ctx, req)
	}

	err := s.plugin.Configure(ctx, req.GetConfig())
	if err != nil {
		return nil, err
	}
	return &helperv1.ConfigureResponse{}, nil
}

type configurerService struct {
	helperv1.UnimplementedNodeConfigurerServer
	plugin *Plugin
}

func (s *configurerService) ConfigureNode(ctx context.Context, req *helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error) {
	return s.plugin.ConfigureNode(ctx, req)
}

type deciderService struct {
	helperv1.UnimplementedReleaseDeciderServer
	plugin *Plugin
}

func (s *deciderService) DecideRelease(ctx context.Context, req *helperv1.DecideReleaseRequest) (*helperv1.DecideReleaseResponse, error) {
	return s.plugin.DecideRelease(ctx, req)
}

func (s *deciderService) ReportOutcome(ctx context.Context, req *helperv1.ReportOutcomeRequest) (*helperv1.ReportOutcomeResponse, error) {
	if s.plugin.ReportOutcome == nil {
		return &helperv1.ReportOutcomeResponse{}, nil
	}

	err := s.plugin.ReportOutcome(ctx, req)
	if err != nil {
		return nil, err
	}
	return &helperv1.ReportOutcomeResponse{}, nil
}
