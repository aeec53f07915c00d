// Package simfleet is a Choria network in one process: a real broker and
// simulated nodes that wait to be provisioned. Tests, benchmarks and the demo
// run the provisioner against it.
//
// The broker comes in two modes. [Issuer] is go-choria's own network broker
// with TLS, an Organization Issuer, a provisioning account and Choria Streams;
// nodes speak version 2 of the protocol. [Insecure] is the NATS server that
// go-choria embeds, which takes plain-text and TLS clients on one port; nodes
// speak version 1.
//
// A node answers discovery pings, rpcutil#inventory, rpcutil#ping and every
// action of the choria_provision agent with the checks and the texts of
// go-choria v0.30.2, but nothing touches a disk: what a node was sent is kept
// in memory and can be read with [Node.Configured]. After a release_update a node
// is back with another version; restarted with a configuration, it can show
// itself in the main account, or crash. Thousands of nodes share a few
// connections.
//
// go-choria decides by one global, protocol.Secure, whether requests are
// signed. Neither the broker nor the nodes read or set it, but a provisioner
// does: tests of the two modes have to be separate test binaries.
package simfleet
