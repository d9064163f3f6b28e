"""`kubectl millrace unpin`: let the autoscaler go on."""

import argparse

from millrace_kubectl.kubectl import Services
from millrace_kubectl.pinning import scaling_status
from millrace_operator.api.annotations import PIN_ANNOTATION

SUMMARY = "end a pin"
DESCRIPTION = """End a pin before its time. The autoscaler goes on from the count that there is, and lowers it
as slowly as ever."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `unpin` needs."""
    parser.add_argument("name", metavar="NAME", help="the InferenceService")


def run(arguments: argparse.Namespace, services: Services, now: float) -> str:  # noqa: ARG001  as its siblings
    """End the pin, and return what holds now. Raises PluginError."""
    name = arguments.name
    service = services.fetch(name)
    if PIN_ANNOTATION not in (service["metadata"].get("annotations") or {}):
        return f"{name} was not pinned"
    services.annotate(name, PIN_ANNOTATION, None)
    count = scaling_status(service).get("desiredReplicas")
    if scaling_status(service).get("mode") != "Automatic" or count is None:
        return f"{name} is no longer pinned"
    unit = "replica" if count == 1 else "replicas"
    return f"{name} is no longer pinned; the autoscaler goes on from {count} {unit}"
