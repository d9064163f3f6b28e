"""`kubectl millrace status`: what is wanted of a service, what is there, and what is in the way."""

import argparse

from millrace_kubectl.facts import Facts
from millrace_kubectl.kubectl import Services
from millrace_kubectl.screen import render_screen

SUMMARY = "what is wanted, what is there, what is in the way"
DESCRIPTION = """Show a service on one screen: what is wanted of it, what is there, what is in the way, and
what to do. It takes the right to get inferenceservices, and no other. `explain` says more about its count."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `status` needs."""
    parser.add_argument("name", metavar="NAME", help="the InferenceService")


def run(arguments: argparse.Namespace, services: Services, now: float) -> str:
    """Return the screen. Raises PluginError."""
    return "\n".join(render_screen(Facts(services.fetch(arguments.name), now)))
