"""`kubectl millrace freeze`: hold the count that a service has now."""

import argparse

from millrace_kubectl.errors import ConflictError, PluginError
from millrace_kubectl.kubectl import Services
from millrace_kubectl.pinning import add_lapse, check_mode, describe_pin, find_lapse, scaling_status
from millrace_kubectl.remedies import find_place
from millrace_operator.api.annotations import PIN_ANNOTATION, Pin

SUMMARY = "hold the present count for a time"
DESCRIPTION = """Hold the count that the service has now, for a time: as `pin` with that count. If the service
changes meanwhile, the count is read again."""
NUM_TRIES = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `freeze` needs."""
    parser.add_argument("name", metavar="NAME", help="the InferenceService")
    add_lapse(parser, with_moment=False)


def run(arguments: argparse.Namespace, services: Services, now: float) -> str:
    """Pin the present count, and return what holds now. Raises PluginError.

    Whatever is written to the service meanwhile makes the API server refuse ours, also what does not touch
    the count. So the count is read again and tried again, a few times.
    """
    until = find_lapse(arguments, now)
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
    check_mode(service)
    count, place = scaling_status(service).get("desiredReplicas"), find_place(service)
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
    pin = Pin(count, until)
    version = service["metadata"]["resourceVersion"]
    return describe_pin(services.annotate(name, PIN_ANNOTATION, str(pin), version), pin, now)
