"""The answers of `promote` and `abort` in each state of a rollout, and the service afterwards.

After a change of words, `python -m tests.kubectl.orders` writes orders.txt again: its diff shows each.
"""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from millrace_kubectl.errors import PluginError
from millrace_kubectl.facts import Facts
from millrace_kubectl.screen import describe_phase
from millrace_kubectl.subcommands.rollout import abort, promote
from millrace_operator.api.annotations import ROLLOUT_ANNOTATION
from testing.world import World
from tests.kubectl.lives import refused, rolling_out, serving, starting
from tests.kubectl.lives.life import Life

EXPECTED = Path(__file__).with_name("golden") / "orders.txt"
LIVES: tuple[Life, ...] = (
    rolling_out.canary_waits_for_promotion,
    rolling_out.canary_serves,
    rolling_out.canary_loads,
    rolling_out.canary_was_promoted,
    rolling_out.rolls_out,
    rolling_out.new_revision_crashes,
    rolling_out.rolled_back,
    rolling_out.rolled_back_again,
    rolling_out.comes_back_after_an_abort,
    rolling_out.canary_failed,
    rolling_out.aborted,
    serving.serves,
    serving.edit_not_seen,
    refused.version_is_unknown,
    refused.spec_is_unreadable,
    refused.spec_is_unreadable_behind_a_canary,
    refused.first_version_is_unknown,
    starting.loads,
    starting.not_seen,
)


class Services:
    """The service of a world, as the plugin reaches it through kubectl."""

    def __init__(self, world: World) -> None:
        self._world = world

    def fetch(self, _name: str) -> dict[str, Any]:
        return self._world.service

    def annotate(self, _name: str, key: str, value: str) -> dict[str, Any]:
        assert key == ROLLOUT_ANNOTATION
        service = self._world.service
        metadata = {**service["metadata"], "annotations": {key: value}}
        return self._world.cluster.put({**service, "metadata": metadata})


async def give(one: Life, subcommand: Any) -> str:
    """Return the transcript: the command, its answer, and the service after the operator has obeyed."""
    world = await one()
    name = subcommand.__name__
    before = world.service
    try:
        answer = subcommand(argparse.Namespace(name="chat"), Services(world), world.now)
    except PluginError as error:
        answer = f"kubectl millrace: {error}"
    lines = [f"$ kubectl millrace {name} chat", answer]
    if world.service != before:
        await world.settle()
        lines.append(f"then {describe_phase(Facts(world.service, world.now))}")
    return "\n".join(lines)


def render() -> str:
    parts = []
    for one in LIVES:
        transcripts = [asyncio.run(give(one, subcommand)) for subcommand in (promote, abort)]
        parts.append("\n".join([f"## {one.__name__}", *transcripts]))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    EXPECTED.write_text(render())
    sys.exit(0)
