"""What `pin`, `freeze` and `unpin` have in common: until when, and what to say of it."""

import argparse
import math
from typing import Any

from millrace_kubectl.errors import PluginError, UsageError
from millrace_kubectl.facts import find_unread
from millrace_kubectl.kubectl import Obj
from millrace_kubectl.moments import describe_moment, describe_seconds
from millrace_kubernetes.durations import parse_duration
from millrace_operator.api.annotations import Pin, parse_moment

DEFAULT_LAPSE = "1h"
LONGEST_SECONDS = 7 * 24 * 3600.0
"""A pin is for an emergency. What is to hold longer belongs into the spec: minReplicas and maxReplicas."""


def add_lapse(parser: argparse.ArgumentParser, *, with_moment: bool) -> None:
    """Add the flags that say until when. They exclude each other."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--for",
        dest="lapse",
        type=parse_lapse,
        default=parse_duration(DEFAULT_LAPSE),
        metavar="DURATION",
        help=f"for how long, such as 90m or 1h30m; at most 168h (default: {DEFAULT_LAPSE})",
    )
    if with_moment:
        group.add_argument(
            "--until",
            type=_parse_until,
            metavar="TIME",
            help="until when, as YYYY-MM-DDTHH:MM:SSZ; at most 7 days ahead",
        )


def parse_lapse(text: str) -> float:
    """Return the seconds of a duration for argparse. Raises ArgumentTypeError."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not 1 <= seconds <= LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 1s to 168h, which is 7 days")
    return seconds


def _parse_until(text: str) -> float:
    try:
        return parse_moment(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def find_lapse(arguments: argparse.Namespace, now: float) -> float:
    """Return when the pin lapses, in whole seconds since 1970. Raises UsageError."""
    until: float | None = getattr(arguments, "until", None)
    if until is None:
        return float(math.ceil(now + arguments.lapse))
    if not now < until <= now + LONGEST_SECONDS:
        what = "is over" if until <= now else "is more than 7 days ahead"
        latest = describe_moment(now + LONGEST_SECONDS, now)
        raise UsageError(f"--until: that time {what}; write one between now and {latest}")
    return until


def check_mode(service: Obj) -> None:
    """Raise PluginError where no pin is obeyed."""
    name, unread = service["metadata"]["name"], find_unread(service.get("status") or {})
    if unread is not None:
        raise PluginError(f"no pin of {name} is obeyed now: {unread}. Correct that first")
    if scaling_spec(service).get("mode") == "External":
        raise PluginError(
            f"{name} is in mode External, where spec.replicas is the count and a pin is not obeyed; write: "
            f"kubectl scale infsvc {name} --replicas=COUNT, or stop what writes it first"
        )


def scaling_spec(service: Obj) -> dict[str, Any]:
    """Return `spec.scaling`; the API server has filled in its defaults."""
    found: dict[str, Any] = service.get("spec", {}).get("scaling") or {}
    return found


def scaling_status(service: Obj) -> dict[str, Any]:
    """Return `status.scaling`, empty before the first decision."""
    found: dict[str, Any] = (service.get("status") or {}).get("scaling") or {}
    return found


def describe_pin(service: Obj, pin: Pin, now: float) -> str:
    """Return what holds now: chat is pinned at 12 replicas until 03:00 UTC, in 59m; …"""
    unit = "replica" if pin.replicas == 1 else "replicas"
    wanted = scaling_status(service).get("recommendedReplicas")
    told = "" if wanted is None else f"; the autoscaler wants {wanted}"
    return (
        f"{service['metadata']['name']} is pinned at {pin.replicas} {unit} until "
        f"{describe_moment(pin.until, now)}, in {describe_seconds(pin.until - now)}{told}"
    )
