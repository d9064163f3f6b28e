"""`kubectl millrace abort`: give a new revision up."""

import argparse

from millrace_kubectl.errors import PluginError
from millrace_kubectl.kubectl import Services
from millrace_kubectl.ordering import read_revisions
from millrace_operator.api.annotations import ROLLOUT_ANNOTATION, Action, Order
from millrace_operator.api.conditions import render_time

SUMMARY = "give a new revision up"
DESCRIPTION = """Give up the revision that is rolled out: the one before gets all replicas back. It is not
tried again until the spec changes or somebody promotes it. It writes the annotation millrace.dev/rollout,
which takes the right to patch inferenceservices."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `abort` needs."""
    parser.add_argument("name", metavar="NAME", help="the InferenceService")


def run(arguments: argparse.Namespace, services: Services, now: float) -> str:
    """Abort, and return what happens now. Raises PluginError."""
    name = arguments.name
    found = read_revisions(services.fetch(name))
    if found.current is None:
        raise PluginError(f"{name} has served no other revision to go back to; edit its spec, or delete it")
    if found.is_rejected:
        return f"revision {found.asked} of {name} was given up before; revision {found.current} serves"
    if found.asked == found.current:
        raise PluginError(
            f"revision {found.current} of {name} serves completely; to go back, undo the last edit"
        )
    services.annotate(name, ROLLOUT_ANNOTATION, str(Order(Action.ABORT, found.asked, render_time(now))))
    return f"revision {found.asked} of {name} is aborted: revision {found.current} gets all replicas back"
