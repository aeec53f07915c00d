#!/usr/bin/python3
"""A helper plugin in Python: facts of a node become its configuration.

README.md says what it needs and how it is run.
"""

import json
import os
import sys
import threading
from concurrent import futures

import grpc
from google.protobuf import json_format

from choria.provisioner.helper.v1 import helper_pb2 as pb

# How many calls run at once; each takes a thread.
CALLS = 16

config = {"brokers": []}


def get_info(request, context):
    return pb.GetInfoResponse(
        name="python-example",
        build="1.0",
        capabilities=[pb.CAPABILITY_CONFIGURE],
        max_in_flight=CALLS,
    )


def read_config(request, context):
    new = json_format.MessageToDict(request.config)
    unknown = sorted(set(new) - set(config))
    if unknown:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "config: unknown key " + ", ".join(unknown))
    return new


def validate(request, context):
    new = read_config(request, context)
    return pb.ValidateResponse(warnings=[] if new.get("brokers") else ["brokers is not set"])


def configure(request, context):
    config.update(read_config(request, context))
    return pb.ConfigureResponse()


def configure_node(request, context):
    node = request.node
    facts = json.loads(node.facts_json or "{}")
    if facts.get("site") == "closed":
        return pb.ConfigureNodeResponse(shutdown=pb.Shutdown(reason="the site is closed"))

    answer = pb.Configure(reason="python-example")
    answer.configuration.update({
        "identity": node.identity,
        "plugin.choria.middleware_hosts": ",".join(config["brokers"]),
        "plugin.choria.server.provision": "false",
    })
    if node.HasField("ed25519"):
        answer.configuration["plugin.security.provider"] = "choria"
        answer.configuration["plugin.security.choria.token_file"] = node.ed25519.directory + "/server.jwt"
        answer.configuration["plugin.security.choria.seed_file"] = node.ed25519.directory + "/server.seed"
        answer.server_claims.collectives.append("mcollective")
        answer.server_claims.permissions_json = b'{"streams": true}'
    return pb.ConfigureNodeResponse(configure=answer)


def service(name, methods):
    """Handlers of a service: method name to function, request and response."""
    return grpc.method_handlers_generic_handler(name, {
        method: grpc.unary_unary_rpc_method_handler(
            call,
            request and request.FromString,
            response and response.SerializeToString,
        )
        for method, (call, request, response) in methods.items()
    })


def serve():
    if os.environ.get("CHORIA_PROVISIONER_HELPER") != "b65f2c0e-0c1d-4f0a-9d7e-3d1f3f5b7a42":
        sys.exit("this is a helper plugin of the Choria Provisioner, which starts it")

    contract = "choria.provisioner.helper.v1."
    ended = threading.Event()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=CALLS + 2))
    server.add_generic_rpc_handlers([
        service(contract + "HelperInfo", {
            "GetInfo": (get_info, pb.GetInfoRequest, pb.GetInfoResponse),
            "Validate": (validate, pb.ValidateRequest, pb.ValidateResponse),
            "Configure": (configure, pb.ConfigureRequest, pb.ConfigureResponse),
        }),
        service(contract + "NodeConfigurer", {
            "ConfigureNode": (configure_node, pb.ConfigureNodeRequest, pb.ConfigureNodeResponse),
        }),
        # The bytes of a HealthCheckResponse that says SERVING.
        service("grpc.health.v1.Health", {"Check": (lambda request, context: b"\x08\x01", None, None)}),
        # How go-plugin asks for the end; the answer is an empty message.
        service("plugin.GRPCController", {"Shutdown": (lambda request, context: ended.set() or b"", None, None)}),
    ])

    socket = os.path.join(os.environ["PLUGIN_UNIX_SOCKET_DIR"], "helper.sock")
    server.add_insecure_port("unix:" + socket)
    server.start()
    print("1|1|unix|" + socket + "|grpc", flush=True)

    ended.wait()
    server.stop(grace=0.1).wait()


if __name__ == "__main__":
    serve()
