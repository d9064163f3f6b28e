"""`kubectl millrace refresh`: ask a model's source once more."""

import argparse

from millrace_kubectl.errors import PluginError
from millrace_kubectl.kubectl import Services
from millrace_kubectl.ordering import read_revisions
from millrace_operator.api.conditions import render_time
from millrace_operator.api.refresh import ANNOTATION, Refresh, can_change

SUMMARY = "ask a model's source once more"
DESCRIPTION = """Ask the source of a service's model which revision it has now. Another one than before is
rolled out as by an edit. It writes the annotation millrace.dev/refresh, which takes the right to patch
inferenceservices."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `refresh` needs."""
    parser.add_argument("name", metavar="NAME", help="the InferenceService")


def run(arguments: argparse.Namespace, services: Services, now: float) -> str:
    """Have the source asked, and return what happens now. Raises PluginError."""
    name = arguments.name
    service = services.fetch(name)
    uri, found = service["spec"]["model"]["uri"], read_revisions(service)
    if not can_change(uri):
        raise PluginError(f"{uri} never has another content: write another address into spec.model.uri")
    known = (service.get("status", {}).get("model") or {}).get("resolvedRevision")
    if known is None:
        raise PluginError(f"what {uri} has is not known yet: its source is being asked already")
    services.annotate(name, ANNOTATION, str(Refresh(found.asked, render_time(now))))
    return f"the source of {name} is asked now; where {uri} is no longer {known}, that is rolled out"
