"""`millrace operator`: run one replica of the operator."""

import argparse
import asyncio
import gc
import importlib.metadata
import logging
import math
import os
import signal
import socket
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import uvloop

from millrace_kubernetes.flags import NAMESPACES_HELP, add_short_name_flag, parse_namespaces
from millrace_operator.api.access_types import Access, DefaultAccess, parse_default_access
from millrace_operator.api.prices import (
    DEFAULT_CURRENCY,
    Prices,
    parse_currency,
    parse_resource_hour,
)
from millrace_operator.app.application import OperatorSettings, run_operator
from millrace_operator.autoscaler.run.settings import (
    TENANT_HEADER,
    ScalingSettings,
    SettingError,
    read_prometheus,
)
from millrace_operator.kube.errors import BadStartError
from millrace_operator.kube.kinds import ServiceKey
from millrace_operator.render.settings import RenderSettings, parse_runtime_version
from millrace_runtime import contract
from millrace_runtime.listener import parse_port, read_bind_address

Parsed = TypeVar("Parsed")
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
DEFAULT_URL = "http://prometheus-operated.monitoring.svc:9090"
"""The Service that prometheus-operator creates, in its most common namespace."""
GARBAGE_THRESHOLDS = (10_000, 10, 10)
"""Python's own are 700, 10, 10. With 1,200 new services they took 4 % of the CPU time, and these take 2 %."""
PULL_POLICIES = ("Always", "IfNotPresent", "Never")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="millrace operator", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    _add_prometheus_flags(parser)
    _add_scaling_flags(parser)
    _add_render_flags(parser)
    _add_access_flags(parser)
    _add_price_flags(parser)
    _add_process_flags(parser)
    return parser


def _add_prometheus_flags(parser: argparse.ArgumentParser) -> None:
    def add(name: str, text: str, metavar: str = "FILE") -> None:
        parser.add_argument(f"--prometheus-{name}", type=Path, metavar=metavar, help=text)

    parser.add_argument("--prometheus-url", default=DEFAULT_URL, help="Prometheus to read signals from")
    parser.add_argument("--prometheus-matchers", default="", help='more label matchers, such as cluster="eu"')
    parser.add_argument("--prometheus-tenant", default="", help=f"whose series to read: {TENANT_HEADER}")
    add("token-file", "bearer token to send to Prometheus")
    add("username-file", "name to send to Prometheus, with a password")
    add("password-file", "password to send to Prometheus")
    add("headers-file", "more headers to send to Prometheus, one 'Name: value' a line")
    add("ca-file", "PEM certificates to trust instead of the system's")
    add("certificate-file", "PEM certificate to show to Prometheus, with its key")
    add("key-file", "PEM key of that certificate")
    parser.add_argument("--prometheus-insecure", action="store_true", help="trust any certificate")


def _add_scaling_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tick-seconds",
        type=float,
        default=ScalingSettings.tick_seconds,
        help="seconds between two scaling decisions",
    )
    parser.add_argument(
        "--scale-down-window-seconds",
        type=float,
        default=ScalingSettings.scale_down_window_seconds,
        help="scale down only to a count that was enough for all of this time",
    )


def _add_render_flags(parser: argparse.ArgumentParser) -> None:
    add, defaults = parser.add_argument, RenderSettings
    add("--gateway-service", default=defaults.gateway_service, help="DNS name of the gateway's Service")
    add(
        "--gateway-port",
        type=_parse_gateway_port,
        default=defaults.gateway_port,
        help="port of the gateway's Service",
    )
    add_short_name_flag(parser)
    add("--cluster-domain", default=defaults.cluster_domain, help="DNS domain of the cluster")
    add("--runtime-image", default=defaults.runtime_image, help="image of the replicas of new revisions")
    add(
        "--runtime-version",
        type=_refusing(parse_runtime_version),
        action="append",
        default=[],
        metavar="VERSION=IMAGE",
        help="image of a version that spec.engine.version can name; may be repeated",
    )
    add("--fetch-image", default=defaults.fetch_image, help="image of the container that fetches models")
    add(
        "--image-pull-policy",
        default=defaults.image_pull_policy,
        choices=PULL_POLICIES,
        help="when nodes pull these images",
    )


def _add_access_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--default-access",
        type=_refusing(parse_default_access),
        default=Access(),
        metavar="JSON",
        help="who may use services that do not say it, and how much, as spec.access; without it: all",
    )
    parser.add_argument(
        "--secret-namespaces",
        type=parse_namespaces,
        default="",
        metavar="NAMES",
        help="the namespaces, beside --namespace, whose Secrets the gateway may read, such as shop,search",
    )


def _add_price_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--resource-hour",
        type=_refusing(parse_resource_hour),
        action="append",
        default=[],
        metavar="NAME=PRICE",
        help="price of a resource's unit for an hour, such as nvidia.com/gpu=2.50; may be repeated",
    )
    parser.add_argument(
        "--currency", type=_refusing(parse_currency), default=DEFAULT_CURRENCY, help="of these prices"
    )


def _refusing(parse: Callable[[str], Parsed]) -> Callable[[str], Parsed]:
    """Return `parse` with errors whose text argparse shows."""

    def parse_or_refuse(text: str) -> Parsed:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse_or_refuse


def _parse_gateway_port(text: str) -> int:
    """Return the port. Each `status.url` names it, so it can't be 0. Raises ArgumentTypeError."""
    port = parse_port(text)
    if port == 0:
        raise argparse.ArgumentTypeError(f"the gateway's port is a number from 1 to 65535, not {text!r}")
    return port


def _add_process_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--namespace",
        default=os.environ.get("POD_NAMESPACE", contract.DEFAULT_NAMESPACE),
        help="where the Lease is",
    )
    add("--namespaces", type=parse_namespaces, default="", metavar="NAMES", help=NAMESPACES_HELP)
    name = os.environ.get("POD_NAME", socket.gethostname())
    # A container that restarts in the same pod is another holder, and waits until the Lease of the old one
    # ends.
    add("--identity", default=f"{name}_{uuid.uuid4().hex[:8]}", help="name in the Lease")
    add(
        "--port",
        type=parse_port,
        default=contract.PORT_OPERATOR_METRICS,
        help="port of /metrics and /healthz",
    )
    add("--workers", type=int, default=4, help="services reconciled at the same time")
    add(
        "--writes-per-second",
        type=float,
        default=OperatorSettings.writes_per_second,
        help="writes to the API server at most, after a burst of 100",
    )
    add("--log-level", default="INFO", choices=LOG_LEVELS, help="least that is logged")


def main(argv: list[str]) -> int:
    """Run until SIGTERM or SIGINT. Returns 0 after a signal, 64 for bad usage, 1 if it cannot start."""
    arguments = build_parser().parse_args(argv)
    if not (arguments.workers >= 1 and 1 <= arguments.writes_per_second < math.inf):
        sys.stderr.write("millrace operator: write --workers and --writes-per-second of at least 1\n")
        return contract.EXIT_BAD_USAGE
    try:
        settings = _read_settings(arguments)
    except SettingError as error:
        sys.stderr.write(f"millrace operator: {error}\n")
        return contract.EXIT_BAD_USAGE
    logging.basicConfig(level=arguments.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kopf").setLevel(max(logging.WARNING, logging.getLogger().level))
    _collect_rarely()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run_until_signal(settings))
    except BadStartError as error:
        sys.stderr.write(f"millrace operator: {error}\n")
        return 1
    return 0


def _collect_rarely() -> None:
    """Collect garbage less often, and never look at the code: nearly all objects are in use."""
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)


def _read_settings(arguments: argparse.Namespace) -> OperatorSettings:
    return OperatorSettings(
        render=read_render_settings(arguments),
        scaling=ScalingSettings(
            read_prometheus(arguments.prometheus_url, arguments),
            arguments.tick_seconds,
            arguments.scale_down_window_seconds,
        ),
        namespace=arguments.namespace,
        namespaces=arguments.namespaces,
        short_names={one.name: ServiceKey(one.namespace, one.service) for one in arguments.short_name},
        identity=arguments.identity,
        bind_address=read_bind_address(os.environ),
        port=arguments.port,
        workers=arguments.workers,
        writes_per_second=arguments.writes_per_second,
    )


def read_render_settings(arguments: argparse.Namespace) -> RenderSettings:
    """Return what the flags say about every service. Our own version names the default image, too."""
    own = {importlib.metadata.version("millrace"): arguments.runtime_image}
    return RenderSettings(
        runtime_image=arguments.runtime_image,
        runtime_versions={**own, **dict(arguments.runtime_version)},
        gateway_service=arguments.gateway_service,
        gateway_port=arguments.gateway_port,
        cluster_domain=arguments.cluster_domain,
        fetch_image=arguments.fetch_image,
        image_pull_policy=arguments.image_pull_policy,
        access=DefaultAccess(
            access=arguments.default_access,
            namespace=arguments.namespace,
            secret_namespaces=frozenset(arguments.secret_namespaces),
        ),
        prices=Prices(arguments.currency, dict(arguments.resource_hour)),
    )


async def _run_until_signal(settings: OperatorSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    task = asyncio.create_task(run_operator(settings))
    waiter = asyncio.create_task(stop.wait())
    await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    if not task.done():
        task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        logging.getLogger(__name__).info("stopped by signal")
