"""`kubectl millrace status`: a service's desired and present state, and the obstacles between them.

Without a name it prints a table with a line for each service.
"""

import argparse
from collections.abc import Iterable

from millrace_kubectl.facts import Facts
from millrace_kubectl.kubectl import Services
from millrace_kubectl.leader import find_silence
from millrace_kubectl.screen import describe_phase, find_obstacles, render_screen
from millrace_kubectl.wording import align, shorten

SUMMARY = "a service's desired state, its present state, and the obstacles"
DESCRIPTION = """Show a service on one screen: its desired state, its present state, the obstacles, and the
remedies. Without NAME show a line for each. It needs the right to get or list inferenceservices. With the
right to list leases it also shows whether an operator leads. `explain` says more about a count."""
TITLES = ("NAMESPACE", "NAME", "STATE", "IN THE WAY")
NOTHING = "there is no InferenceService here; kubectl millrace status -A lists those of all namespaces"
WORDS_LENGTH = 80
"""The column IN THE WAY is cut to this; `status NAME` shows all of it."""


def add_parsers(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser("status", help=SUMMARY, description=DESCRIPTION)
    parser.add_argument("name", metavar="NAME", nargs="?", help="the InferenceService (default: each)")
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="without NAME: all namespaces'")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, services: Services, now: float) -> str:
    """Return the screen, or a line for each service. Raises PluginError."""
    if arguments.name is None:
        everywhere, silence = arguments.all_namespaces, find_silence(services, now)
        found = (Facts(one, now, silence=silence) for one in services.list_all(everywhere=everywhere))
        return _render_overview(found, has_namespaces=everywhere)
    return "\n".join(
        render_screen(Facts(services.fetch(arguments.name), now, silence=find_silence(services, now)))
    )


def _render_overview(services: Iterable[Facts], *, has_namespaces: bool) -> str:
    """Return a table with a line for each service, by namespace and name."""
    rows = sorted(_describe(facts) for facts in services)
    if not rows:
        return NOTHING
    first = 0 if has_namespaces else 1
    return "\n".join(align([TITLES[first:], *(row[first:] for row in rows)]))


def _describe(facts: Facts) -> tuple[str, ...]:
    namespace = str(facts.service["metadata"].get("namespace", ""))
    obstacle = next(iter(find_obstacles(facts)), "nothing")
    return namespace, facts.name, describe_phase(facts), shorten(obstacle, WORDS_LENGTH)
