"""`kubectl millrace simulate`: replays a service's traffic against the autoscaler and others' rules."""

import argparse
import sys
from pathlib import Path

from millrace_kubectl.kubectl import Services
from millrace_kubernetes.durations import parse_duration

SUMMARY = "replay traffic against the autoscaler and others' rules"
DESCRIPTION = """Replay a service's traffic in virtual time: which rules keep the objectives, with how many
replicas. It starts nothing and changes nothing. It asks a cluster only with --like."""
PROMETHEUS_FILES = {
    "token": "bearer token to send",
    "username": "name to send, with a password",
    "password": "that password",
    "headers": "more headers to send, one 'Name: value' a line",
    "ca": "PEM certificates to trust instead of the system's",
    "certificate": "PEM certificate to show, with its key",
    "key": "PEM key of that certificate",
}
SINCE = """of --from-prometheus (default: 6h). Only the gateway counts requests to a service at zero: they are
missing if a scrape renames the label `service` of the gateway's metrics"""
POLICIES = "ours,hpa,keda,knative,static"


def add_parsers(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser("simulate", help=SUMMARY, description=DESCRIPTION)
    add_arguments(parser)
    parser.set_defaults(run=run)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `simulate`."""
    add = parser.add_argument
    add("-f", "--filename", type=Path, metavar="FILE", help="the InferenceService (default: that of --like)")
    load = parser.add_mutually_exclusive_group(required=True)
    load.add_argument("--trace", type=Path, metavar="FILE", help="recorded requests: see the docs")
    load.add_argument(
        "--from-prometheus", metavar="URL", help="draw requests from a service's recorded rates"
    )
    add("--since", type=_parse_length, metavar="DURATION", help=SINCE)
    _add_prometheus_flags(parser)
    add("--part", metavar="BEGIN-END", help="of --trace: the part to replay, such as 0s-30m (default: all)")
    add("--scale", type=_parse_count, metavar="COUNT", help="of --trace: copies of each request (default: 1)")
    add("--replica", type=Path, metavar="FILE", help="a replica's step times and limits: see the docs")
    add("--like", metavar="NAME", help="a running service whose learned step times to use")
    add("--policy", default=POLICIES, metavar="NAMES", help=f"NAME or NAME:KNOB each (default: {POLICIES})")
    add(
        "--cold-start",
        type=_parse_length,
        metavar="DURATION",
        help="of a replica (default: as --replica has it)",
    )
    add("--scrape", type=_parse_length, default=5.0, metavar="DURATION", help="between scrapes (default: 5s)")
    add(
        "--initial", type=_parse_count, metavar="COUNT", help="replicas at first (default: as the load needs)"
    )
    add("--seed", type=_parse_seed, default=1, help="of all random draws (default: 1)")
    add("--sweep", action="store_true", help="also try several values of each policy's knob")
    add("--output", type=Path, metavar="FOLDER", help="also write simulation.png and simulation.html there")
    add("-o", dest="format", choices=("text", "json"), default="text", help="default: text")


def _add_prometheus_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `millrace operator` that say how to query --from-prometheus."""
    group = parser.add_argument_group("of --from-prometheus, as the operator has them")
    for name, text in PROMETHEUS_FILES.items():
        group.add_argument(f"--prometheus-{name}-file", type=Path, metavar="FILE", help=text)
    group.add_argument(
        "--prometheus-matchers", default="", metavar="MATCHERS", help='more labels, such as cluster="eu"'
    )
    group.add_argument(
        "--prometheus-tenant", default="", metavar="NAME", help="whose series to read: X-Scope-OrgID"
    )
    group.add_argument("--prometheus-insecure", action="store_true", help="trust any certificate")


def _parse_length(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if seconds < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is less than a second; write 1s or more")
    return seconds


def _parse_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to 9999")
    return int(text)


def _parse_seed(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0; write for example 1")
    return int(text)


def run(arguments: argparse.Namespace, services: Services, now: float) -> str:
    """Simulate, and return the table. Raises PluginError."""
    from millrace_kubectl.simulation.command import compare  # noqa: PLC0415  explain must not load it

    return compare(arguments, services, now, sys.stderr)
