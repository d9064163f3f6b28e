"""`kubectl millrace status`: what is wanted of a service, what is there, and what is in the way."""

import argparse

from millrace_kubectl.facts import Facts
from millrace_kubectl.kubectl import Services
from millrace_kubectl.leader import find_silence
from millrace_kubectl.overview import render_overview
from millrace_kubectl.screen import render_screen

SUMMARY = "what is wanted, what is there, what is in the way"
DESCRIPTION = """Show a service on one screen: what is wanted of it, what is there, what is in the way, and
what to do. Without NAME show a line for each. It takes the right to get or list inferenceservices. With the
right to list leases it knows also whether an operator leads. `explain` says more about a count."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `status` needs."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="the InferenceService (default: each)")
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="without NAME: all namespaces'")


def run(arguments: argparse.Namespace, services: Services, now: float) -> str:
    """Return the screen, or a line for each service. Raises PluginError."""
    if arguments.name is None:
        everywhere, silence = arguments.all_namespaces, find_silence(services, now)
        found = (Facts(one, now, silence=silence) for one in services.list_all(everywhere=everywhere))
        return render_overview(found, has_namespaces=everywhere)
    return "\n".join(
        render_screen(Facts(services.fetch(arguments.name), now, silence=find_silence(services, now)))
    )
