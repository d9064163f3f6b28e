"""`kubectl millrace pin`, `freeze` and `unpin`: hold a service's count for a time."""

import argparse
import math
from typing import Any

from millrace_kubectl.errors import ConflictError, PluginError, UsageError
from millrace_kubectl.facts import find_unread
from millrace_kubectl.kubectl import Obj, Services
from millrace_kubectl.remedies import find_place
from millrace_kubectl.wording import describe_moment, describe_seconds
from millrace_kubernetes.durations import parse_duration
from millrace_operator.api.annotations import PIN_ANNOTATION, Pin, parse_moment

PIN_DESCRIPTION = """Hold a service's count for a time. The autoscaler goes on from there afterwards.
It writes the annotation millrace.dev/pin, which needs the right to patch inferenceservices."""
FREEZE_DESCRIPTION = """Hold the count that the service has now, for a time: as `pin` with that count. If the
service changes meanwhile, the count is read again."""
UNPIN_DESCRIPTION = """End a pin before its time. The autoscaler goes on from the count that there is, and
lowers it as slowly as ever."""
DEFAULT_LAPSE = "1h"
LONGEST_SECONDS = 7 * 24 * 3600.0
"""A pin is for an emergency. A longer bound belongs into the spec: minReplicas and maxReplicas."""
NUM_TRIES = 5


def add_parsers(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the three sub-commands."""
    parser = commands.add_parser("pin", help="hold a count for a time", description=PIN_DESCRIPTION)
    _add_name(parser)
    parser.add_argument("count", metavar="COUNT", type=_parse_count, help="replicas to hold")
    _add_lapse(parser, with_moment=True)
    parser.set_defaults(run=pin)
    parser = commands.add_parser(
        "freeze", help="hold the present count for a time", description=FREEZE_DESCRIPTION
    )
    _add_name(parser)
    _add_lapse(parser, with_moment=False)
    parser.set_defaults(run=freeze)
    parser = commands.add_parser("unpin", help="end a pin", description=UNPIN_DESCRIPTION)
    _add_name(parser)
    parser.set_defaults(run=unpin)


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the InferenceService")


def _parse_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 4):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of replicas; write for example 12")
    return int(text)


def _add_lapse(parser: argparse.ArgumentParser, *, with_moment: bool) -> None:
    """Add the flags for the end of a pin. They exclude each other."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--for",
        dest="lapse",
        type=_parse_lapse,
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


def _parse_lapse(text: str) -> float:
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


def pin(arguments: argparse.Namespace, services: Services, now: float) -> str:
    """Pin a count, and return what holds now. Raises PluginError."""
    wanted = Pin(arguments.count, _find_lapse(arguments, now))
    service = services.fetch(arguments.name)
    _check_mode(service)
    _check_bounds(service, wanted.replicas)
    return _describe_pin(services.annotate(arguments.name, PIN_ANNOTATION, str(wanted)), wanted, now)


def _check_bounds(service: Obj, count: int) -> None:
    scaling = _read_scaling_spec(service)
    least, high = scaling.get("minReplicas", 1), scaling.get("maxReplicas", 1)
    low = max(1, least)
    if not low <= count <= high:
        below = f"minReplicas {least}" if least else "one replica, which a pin holds at least"
        bound = f"less than {below}" if count < low else f"more than maxReplicas {high}"
        between = f"write {low}" if low == high else f"write {low} to {high}"
        raise PluginError(f"{count} is {bound}; {between}, or change spec.scaling first")


def freeze(arguments: argparse.Namespace, services: Services, now: float) -> str:
    """Pin the present count, and return what holds now. Raises PluginError.

    The API server refuses a patch with the version of an object that has changed meanwhile, even if
    the count is the same. So the count is read and the patch tried again, a few times.
    """
    until = _find_lapse(arguments, now)
    for _ in range(NUM_TRIES):
        try:
            return _freeze_once(arguments.name, services, until, now)
        except ConflictError:
            continue
    place = f" -n {arguments.namespace}" if arguments.namespace else ""
    raise PluginError(
        f"{arguments.name} changes all the time; write: kubectl millrace pin {arguments.name} COUNT{place}"
    )


def _freeze_once(name: str, services: Services, until: float, now: float) -> str:
    service = services.fetch(name)
    _check_mode(service)
    count, place = _read_scaling_status(service).get("desiredReplicas"), find_place(service)
    if count is None:
        raise PluginError(
            f"{name} has no count yet, because no operator has decided one; "
            f"write: kubectl millrace pin {name} COUNT{place}"
        )
    if count == 0:
        raise PluginError(
            f"{name} is at zero, and a pin holds at least one replica; to start one and hold it "
            f"write: kubectl millrace pin {name} 1{place}"
        )
    wanted = Pin(count, until)
    version = service["metadata"]["resourceVersion"]
    return _describe_pin(services.annotate(name, PIN_ANNOTATION, str(wanted), version), wanted, now)


def unpin(arguments: argparse.Namespace, services: Services, now: float) -> str:  # noqa: ARG001  as its siblings
    """End the pin, and return what holds now. Raises PluginError."""
    name = arguments.name
    service = services.fetch(name)
    if PIN_ANNOTATION not in (service["metadata"].get("annotations") or {}):
        return f"{name} was not pinned"
    services.annotate(name, PIN_ANNOTATION, None)
    status = _read_scaling_status(service)
    count = status.get("desiredReplicas")
    if status.get("mode") != "Automatic" or count is None:
        return f"{name} is no longer pinned"
    unit = "replica" if count == 1 else "replicas"
    return f"{name} is no longer pinned; the autoscaler goes on from {count} {unit}"


def _find_lapse(arguments: argparse.Namespace, now: float) -> float:
    """Return when the pin lapses, in whole seconds since 1970. Raises UsageError."""
    until: float | None = getattr(arguments, "until", None)
    if until is None:
        return float(math.ceil(now + arguments.lapse))
    if not now < until <= now + LONGEST_SECONDS:
        what = "is over" if until <= now else "is more than 7 days ahead"
        latest = describe_moment(now + LONGEST_SECONDS, now)
        raise UsageError(f"--until: that time {what}; write one between now and {latest}")
    return until


def _check_mode(service: Obj) -> None:
    """Raise PluginError if the operator would obey no pin."""
    name, unread = service["metadata"]["name"], find_unread(service.get("status") or {})
    if unread is not None:
        raise PluginError(f"the operator obeys no pin of {name} now: {unread}. Correct that first")
    if _read_scaling_spec(service).get("mode") == "External":
        raise PluginError(
            f"{name} is in mode External, which obeys spec.replicas and no pin; write: "
            f"kubectl scale infsvc {name} --replicas=COUNT, or stop the writer of spec.replicas first"
        )


def _read_scaling_spec(service: Obj) -> dict[str, Any]:
    """Return `spec.scaling`; the API server has filled in its defaults."""
    found: dict[str, Any] = service.get("spec", {}).get("scaling") or {}
    return found


def _read_scaling_status(service: Obj) -> dict[str, Any]:
    """Return `status.scaling`, empty before the first decision."""
    found: dict[str, Any] = (service.get("status") or {}).get("scaling") or {}
    return found


def _describe_pin(service: Obj, wanted: Pin, now: float) -> str:
    """Return what holds now: chat is pinned at 12 replicas until 03:00 UTC, in 59m; …"""
    unit = "replica" if wanted.replicas == 1 else "replicas"
    recommended = _read_scaling_status(service).get("recommendedReplicas")
    beside = "" if recommended is None else f"; the autoscaler wants {recommended}"
    return (
        f"{service['metadata']['name']} is pinned at {wanted.replicas} {unit} until "
        f"{describe_moment(wanted.until, now)}, in {describe_seconds(wanted.until - now)}{beside}"
    )
