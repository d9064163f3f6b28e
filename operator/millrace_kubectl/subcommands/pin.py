"""`kubectl millrace pin`: hold a service's count for a time."""

import argparse

from millrace_kubectl.errors import PluginError
from millrace_kubectl.kubectl import Obj, Services
from millrace_kubectl.pinning import add_lapse, check_mode, describe_pin, find_lapse, scaling_spec
from millrace_operator.api.annotations import PIN_ANNOTATION, Pin

SUMMARY = "hold a count for a time"
DESCRIPTION = """Hold a service's count for a time. The autoscaler goes on from there afterwards.
It writes the annotation millrace.dev/pin, which takes the right to patch inferenceservices."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `pin` needs."""
    parser.add_argument("name", metavar="NAME", help="the InferenceService")
    parser.add_argument("count", metavar="COUNT", type=_parse_count, help="replicas to hold")
    add_lapse(parser, with_moment=True)


def _parse_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 4):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of replicas; write for example 12")
    return int(text)


def run(arguments: argparse.Namespace, services: Services, now: float) -> str:
    """Pin, and return what holds now. Raises PluginError."""
    pin = Pin(arguments.count, find_lapse(arguments, now))
    service = services.fetch(arguments.name)
    check_mode(service)
    _check_bounds(service, pin.replicas)
    return describe_pin(services.annotate(arguments.name, PIN_ANNOTATION, str(pin)), pin, now)


def _check_bounds(service: Obj, count: int) -> None:
    scaling = scaling_spec(service)
    least, high = scaling.get("minReplicas", 1), scaling.get("maxReplicas", 1)
    low = max(1, least)
    if not low <= count <= high:
        below = f"minReplicas {least}" if least else "one replica, which a pin holds at least"
        bound = f"less than {below}" if count < low else f"more than maxReplicas {high}"
        between = f"write {low}" if low == high else f"write {low} to {high}"
        raise PluginError(f"{count} is {bound}; {between}, or change spec.scaling first")
