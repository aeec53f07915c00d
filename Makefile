# Set-up and checks. `make help` lists the targets.
SHELL := /bin/sh
.DEFAULT_GOAL := help

TOOLS := build/tools
MODULES := . helper examples
PROTO := choria/provisioner/helper/v1/helper.proto

# go-choria wants USER; machines that build often have none.
export USER ?= root

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1: \2/p' Makefile

.PHONY: generate
generate: $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc ## make the Go code of the helper contract anew
	cd helper/proto && protoc \
		--plugin=../../$(TOOLS)/protoc-gen-go --plugin=../../$(TOOLS)/protoc-gen-go-grpc \
		--go_out=.. --go_opt=module=github.com/choria-provisioner/provisioner/helper \
		--go-grpc_out=.. --go-grpc_opt=module=github.com/choria-provisioner/provisioner/helper \
		$(PROTO)

$(TOOLS)/protoc-gen-go: go.mod
	go build -o $@ google.golang.org/protobuf/cmd/protoc-gen-go
$(TOOLS)/protoc-gen-go-grpc: go.mod
	go build -o $@ google.golang.org/grpc/cmd/protoc-gen-go-grpc
