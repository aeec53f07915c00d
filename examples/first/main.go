// Command first is the smallest helper: every node gets the same configuration.
package main

import (
	"context"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

func main() {
	helper.Serve(&helper.Plugin{Name: "first", Build: "1.0", ConfigureNode: configure})
}

func configure(_ context.Context, req *helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error) {
	return helper.Configure(map[string]string{
		"identity":                       req.GetNode().GetIdentity(),
		"plugin.choria.middleware_hosts": "broker.example.net:4222",
		"plugin.choria.server.provision": "false",
	}), nil
}
