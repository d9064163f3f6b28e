"""`kubectl millrace promote`: give a new revision all replicas."""

import argparse

from millrace_kubectl.kubectl import Services
from millrace_kubectl.ordering import read_revisions
from millrace_operator.api.annotations import ROLLOUT_ANNOTATION, Action, Order
from millrace_operator.api.conditions import render_time

SUMMARY = "give a new revision all replicas"
DESCRIPTION = """End the canary of the revision that the spec asks for: it gets all replicas, and those of its
canary go on. A revision that was given up is tried again. It writes the annotation millrace.dev/rollout,
which takes the right to patch inferenceservices."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `promote` needs."""
    parser.add_argument("name", metavar="NAME", help="the InferenceService")


def run(arguments: argparse.Namespace, services: Services, now: float) -> str:
    """Promote, and return what happens now. Raises PluginError."""
    name = arguments.name
    found = read_revisions(services.fetch(name))
    if not found.is_rejected and found.is_promoted:
        return (
            f"revision {found.asked} of {name} was promoted before: it gets all replicas as they become ready"
        )
    if not found.is_rejected and found.canary is None:
        what = "is being rolled out without a canary" if found.rollout else "has no rollout under way"
        return f"{name} {what}: there is nothing to promote"
    services.annotate(name, ROLLOUT_ANNOTATION, str(Order(Action.PROMOTE, found.asked, render_time(now))))
    if found.is_rejected:
        return f"revision {found.asked} of {name} is tried again, with all replicas and without a canary"
    return f"revision {found.asked} of {name} is promoted: it gets all replicas as they become ready"
