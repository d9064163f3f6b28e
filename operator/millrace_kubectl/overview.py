"""Many services, a line for each: the gravest truth, and what is in the way. Pure."""

from collections.abc import Iterable

from millrace_kubectl.facts import Facts
from millrace_kubectl.screen import describe_phase, find_obstacles
from millrace_kubectl.table import align
from millrace_kubectl.words import shorten

TITLES = ("NAMESPACE", "NAME", "STATE", "IN THE WAY")
NOTHING = "there is no InferenceService here; kubectl millrace status -A lists those of all namespaces"
WORDS_LENGTH = 80
"""Of what is in the way; `status NAME` shows all of it."""


def render_overview(services: Iterable[Facts], *, has_namespaces: bool) -> str:
    """Return a table, by namespace and name."""
    rows = sorted(_describe(facts) for facts in services)
    if not rows:
        return NOTHING
    first = 0 if has_namespaces else 1
    return "\n".join(align([TITLES[first:], *(row[first:] for row in rows)]))


def _describe(facts: Facts) -> tuple[str, ...]:
    namespace = str(facts.service["metadata"].get("namespace", ""))
    obstacle = next(iter(find_obstacles(facts)), "nothing")
    return namespace, facts.name, describe_phase(facts), shorten(obstacle, WORDS_LENGTH)
