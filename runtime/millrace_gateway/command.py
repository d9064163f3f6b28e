"""`millrace gateway`: reads flags and environment, runs the gateway, returns an exit status."""

import argparse
import asyncio
import dataclasses
import gc
import logging
import os
import re
import sys

import uvloop

from millrace_gateway.access.errors import PolicyError
from millrace_gateway.access.policy import OPEN, AccessPolicy, read_default
from millrace_gateway.errors import CannotListenError
from millrace_gateway.front.headers import may_be_sent
from millrace_gateway.http.sockets import raise_descriptors
from millrace_gateway.lifecycle import Signals
from millrace_gateway.route.objects import ServiceKey
from millrace_gateway.server import Gateway
from millrace_gateway.settings import Settings
from millrace_kubernetes.access import ClusterAccess, load_access
from millrace_kubernetes.errors import AccessError
from millrace_kubernetes.flags import NAMESPACES_HELP, add_short_name_flag, parse_namespaces
from millrace_runtime.contract import (
    DEFAULT_NAMESPACE,
    ENV_BIND_ADDRESS,
    EXIT_BAD_USAGE,
    PATH_LOADS,
    PATH_METRICS,
    PORT_GATEWAY,
    PORT_GATEWAY_METRICS,
    PORT_GATEWAY_PEERS,
)
from millrace_runtime.cors import parse_origin
from millrace_runtime.listener import parse_port, read_bind_address

logger = logging.getLogger(__name__)

EXIT_BROKEN = 1
GARBAGE_THRESHOLDS = 50_000, 20, 50
"""A request makes about a hundred objects, and none in a cycle, so Python need not look for those often."""


def main(argv: list[str]) -> int:
    """Run the gateway until SIGTERM or SIGINT. Returns 0 once drained, else 1 or 64 and writes the cause."""
    settings = read_settings(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        access = load_access(os.environ)
    except AccessError as error:
        return _fail(str(error), EXIT_BAD_USAGE)
    settings = dataclasses.replace(settings, own_namespace=access.namespace)
    raise_descriptors()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run_gateway(settings, access))
    except CannotListenError as error:
        return _fail(str(error), EXIT_BROKEN)


def read_settings(argv: list[str]) -> Settings:
    """Read the flags, and the bind address from the environment. Exits with 2 on a bad flag."""
    parser = argparse.ArgumentParser(
        prog="millrace gateway",
        description="The front door of all InferenceServices: routes requests to replicas.",
    )
    parser.add_argument(
        "--host",
        default=read_bind_address(os.environ),
        help=f"the address to listen on (default: ${ENV_BIND_ADDRESS}, else all addresses, IPv6 and IPv4)",
    )
    parser.add_argument(
        "--port", type=parse_port, default=PORT_GATEWAY, help="the port to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--metrics-port",
        type=parse_port,
        default=PORT_GATEWAY_METRICS,
        help=f"the port of {PATH_METRICS} and {PATH_LOADS}, which are not for clients (default: %(default)s)",
    )
    parser.add_argument(
        "--cluster-domain",
        default=Settings.cluster_domain,
        help="the cluster's DNS domain, which may follow .svc in a Host (default: %(default)s)",
    )
    parser.add_argument(
        "--namespaces", type=parse_namespaces, default="", metavar="NAMES", help=NAMESPACES_HELP
    )
    parser.add_argument(
        "--operator-namespace",
        default=os.environ.get("POD_NAMESPACE", DEFAULT_NAMESPACE),
        help="the namespace of the operator's Lease; only its holder may read the loads of replicas "
        f"(default: $POD_NAMESPACE, else {DEFAULT_NAMESPACE})",
    )
    _add_tenancy_flags(parser)
    _add_access_flags(parser)
    flags = parser.parse_args(argv)
    return Settings(
        flags.host,
        flags.port,
        flags.metrics_port,
        flags.cluster_domain,
        namespaces=flags.namespaces,
        operator_namespace=flags.operator_namespace,
        short_names={one.name: ServiceKey(one.namespace, one.service) for one in flags.short_name},
        public_hosts=frozenset(flags.public_host),
        short_hosts=flags.short_hosts,
        forward_headers=tuple(flags.forward_header),
        allowed_origins=tuple(flags.allowed_origin),
        body_memory_bytes=flags.body_memory,
        list_all_models=flags.list_all_models,
        peers_port=flags.peers_port,
        default_access=flags.default_access,
        secret_namespaces=flags.secret_namespaces,
        pod_name=os.environ.get("POD_NAME", ""),
        has_access_log=flags.access_log,
        sessions_by_user=flags.sessions_by_user,
    )


def _add_tenancy_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags about tenants: what they may reach, and what they see of each other."""
    add_short_name_flag(parser)
    parser.add_argument(
        "--public-host",
        type=str.lower,
        action="append",
        default=[],
        metavar="HOST",
        help="a host at which the model decides, even if it looks like a service's; may be repeated",
    )
    parser.add_argument(
        "--short-hosts",
        action="store_true",
        help="accept the Host <name>.<namespace>, without .svc, as the name of a service",
    )
    parser.add_argument(
        "--forward-header",
        type=_parse_header,
        action="append",
        default=[],
        metavar="NAME",
        help="also forward this header of clients to replicas, such as baggage; may be repeated",
    )
    parser.add_argument(
        "--allowed-origin",
        type=_parse_origin,
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let web pages of this origin call the API, such as https://chat.example.com, or * for all; "
        "may be repeated",
    )
    parser.add_argument(
        "--body-memory",
        type=_parse_memory,
        default=Settings.body_memory_bytes,
        metavar="BYTES",
        help="memory for all request bodies that the gateway holds at the same time "
        f"(default: {Settings.body_memory_bytes >> 20}Mi)",
    )
    parser.add_argument(
        "--list-all-models",
        action="store_true",
        help="at the gateway's own address, list every service's model, not only the pinned names",
    )


def _add_access_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags about clients: their keys, their limits, and what is written about them."""
    parser.add_argument(
        "--default-access",
        type=_parse_access,
        default=OPEN,
        metavar="JSON",
        help="who may use services without spec.access, in the form of that field",
    )
    parser.add_argument(
        "--secret-namespaces",
        type=parse_namespaces,
        default="",
        metavar="NAMES",
        help="namespaces whose Secrets with API keys the gateway reads, beside its own",
    )
    parser.add_argument(
        "--peers-port",
        type=parse_port,
        default=PORT_GATEWAY_PEERS,
        help="the port where other gateways report what counts for limits (default: %(default)s)",
    )
    parser.add_argument(
        "--sessions-by-user",
        action="store_true",
        help="send requests with the same `user` in their bodies to the same replica, as X-Session-Id does",
    )
    parser.add_argument(
        "--access-log",
        action="store_true",
        help="write each request as a line of JSON to the standard output, without prompts",
    )


def _parse_access(text: str) -> AccessPolicy:
    """Return the policy. Raises ArgumentTypeError."""
    try:
        return read_default(text, os.environ.get("POD_NAMESPACE", DEFAULT_NAMESPACE))
    except PolicyError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _parse_header(text: str) -> str:
    """Return the header's name. Raises ArgumentTypeError for a header that replicas must not get."""
    if not may_be_sent(text):
        raise argparse.ArgumentTypeError(f"{text!r} can't be forwarded; write a name such as baggage")
    return text


def _parse_origin(text: str) -> str:
    """Return the origin. Raises ArgumentTypeError."""
    try:
        return parse_origin(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _parse_memory(text: str) -> int:
    """Return bytes. Raises ArgumentTypeError for an invalid amount, or one too small for a body."""
    match = re.fullmatch(r"([0-9]{1,9})(Mi|Gi)", text)
    found = 0 if match is None else int(match[1]) * {"Mi": 2**20, "Gi": 2**30}[match[2]]
    if found < 2 * Settings.max_body_bytes:
        least = f"{2 * Settings.max_body_bytes >> 20}Mi"
        raise argparse.ArgumentTypeError(f"{text!r} is refused; write {least} or more, such as 256Mi or 1Gi")
    return found


async def run_gateway(settings: Settings, access: ClusterAccess) -> int:
    """Serve until a signal, then drain. Returns the exit status."""
    gateway, signals = Gateway(settings), Signals()
    async with gateway.serve() as sites:
        logger.info("following the cluster at %s", access.server)
        gc.freeze()
        gc.set_threshold(*GARBAGE_THRESHOLDS)
        is_drained = await signals.run_until_drained(gateway.follow(access), lambda: gateway.drain(sites))
    logger.info("drained" if is_drained else "a second signal: leaving at once")
    return 0 if is_drained else EXIT_BROKEN


def _fail(reason: str, status: int) -> int:
    sys.stderr.write(f"millrace gateway: {reason}\n")
    return status
