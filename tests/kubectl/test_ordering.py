"""`promote` and `abort` as a user runs them, on the status that the operator itself writes."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from millrace_fit.facts import find_facts
from millrace_operator.api.annotations import REFRESH_ANNOTATION as REFRESH
from millrace_operator.api.annotations import ROLLOUT_ANNOTATION
from testing.checkpoints.models import MEDIUM, stored_of
from testing.world import World, crash_status
from tests.kubectl import orders
from tests.kubectl.conftest import Terminal

EXTERNAL = {"mode": "External", "minReplicas": 1, "maxReplicas": 1}
NEW = {"engine": {"maxSequences": 4}}
FACTS = find_facts(MEDIUM, stored_of(MEDIUM))
MANUAL = {"canary": {"promotion": "Manual"}}


async def served(**rollout: Any) -> World:
    world = World(scaling=EXTERNAL, replicas=2, rollout=rollout)
    await world.settle()
    return world


async def with_canary() -> World:
    world = await served(**MANUAL)
    world.edit(**NEW)
    await world.settle()
    return world


def test_they_say_what_they_said_in_each_state() -> None:
    assert orders.render() == orders.EXPECTED.read_text(), "if that is wanted: python -m tests.kubectl.orders"


def order_of(terminal: Terminal) -> str | None:
    found: str | None = terminal.service["metadata"].get("annotations", {}).get(ROLLOUT_ANNOTATION)
    return found


async def follow(world: World, terminal: Terminal) -> None:
    """Let the operator see the plugin's annotation."""
    metadata = {**world.service["metadata"], "annotations": {ROLLOUT_ANNOTATION: order_of(terminal)}}
    world.cluster.put({**world.service, "metadata": metadata})
    await world.settle()


async def test_a_canary_is_promoted(terminal: Terminal) -> None:
    world = await with_canary()
    asked = world.status["updateRevision"]
    terminal.put(world.service)
    answer = f"revision {asked} of chat is promoted: it gets all replicas as they become ready\n"
    assert terminal.run("promote", "chat") == (0, answer, "")
    assert re.fullmatch(rf"promote {asked} at 20\S+Z", order_of(terminal) or "")
    await follow(world, terminal)
    assert world.status["currentRevision"] == asked
    terminal.put(world.service)
    assert (
        terminal.run("promote", "chat").out == "chat has no rollout under way: there is nothing to promote\n"
    )


async def test_a_canary_is_aborted_and_tried_again(terminal: Terminal) -> None:
    world = await with_canary()
    asked, stable = world.status["updateRevision"], world.status["currentRevision"]
    terminal.put(world.service)
    answer = f"revision {asked} of chat is aborted: revision {stable} gets all replicas back\n"
    assert terminal.run("abort", "chat") == (0, answer, "")
    await follow(world, terminal)
    assert world.deployments() == {stable: 2}
    terminal.put(world.service)
    assert "was given up before" in terminal.run("abort", "chat").out
    assert "is tried again, with all replicas" in terminal.run("promote", "chat").out
    await follow(world, terminal)
    assert world.status["currentRevision"] == asked


async def test_a_rollout_without_a_canary_has_nothing_to_promote_and_can_be_aborted(
    terminal: Terminal,
) -> None:
    world = await served()
    world.edit(**NEW)
    await world.reconcile()
    world.broken[world.status["updateRevision"]] = crash_status()
    await world.settle()
    terminal.put(world.service)
    assert "without a canary" in terminal.run("promote", "chat").out
    assert order_of(terminal) is None
    assert terminal.run("abort", "chat").status == 0
    assert (order_of(terminal) or "").startswith(f"abort {world.status['updateRevision']} at 20")


async def test_there_is_nothing_to_abort(terminal: Terminal) -> None:
    world = await served()
    terminal.put(world.service)
    status, out, error = terminal.run("abort", "chat")
    assert (status, out) == (1, "")
    assert error.endswith("serves completely; to go back, undo the last edit\n")


async def test_a_first_revision_has_none_to_go_back_to(terminal: Terminal) -> None:
    world = World(scaling=EXTERNAL, replicas=2)
    await world.reconcile()
    terminal.put(world.service)
    assert "has served no other revision to go back to" in terminal.run("abort", "chat").error


async def test_an_edit_that_the_operator_has_not_seen_is_waited_for(terminal: Terminal) -> None:
    world = await with_canary()
    world.edit(engine={"maxSequences": 8})
    terminal.put(world.service)
    for action in ("promote", "abort"):
        answer = terminal.run(action, "chat")
        assert answer.status == 1
        assert "has not seen the last edit of chat yet; try again in a moment" in answer.error
    assert order_of(terminal) is None


async def test_no_order_is_confirmed_while_nobody_obeys_one(terminal: Terminal) -> None:
    world = await with_canary()
    world.edit(scaling={"mode": "Scheduled"})
    await world.settle()
    terminal.put(world.service)
    for action in ("promote", "abort"):
        answer = terminal.run(action, "chat")
        assert (answer.status, answer.out) == (1, "")
        assert answer.error == (
            "kubectl millrace: the operator obeys no order for chat now: this version of the operator "
            "cannot read the spec: scaling.mode should be 'Automatic', 'External' or 'DryRun'. "
            "Correct that first\n"
        )
    assert order_of(terminal) is None


FETCHED = {"model": {"uri": "hf://acme/chat@main"}, "scaling": EXTERNAL, "replicas": 2}


async def test_a_source_is_asked_anew(terminal: Terminal) -> None:
    world = World(**FETCHED)
    world.model_revision = "1" * 40
    await world.settle()
    terminal.put(world.service)
    answer = terminal.run("refresh", "chat")
    assert answer.status == 0
    assert f"rolls out hf://acme/chat@main if it is no longer {'1' * 40}" in answer.out
    annotations = terminal.service["metadata"]["annotations"]
    assert re.fullmatch(rf"{world.status['updateRevision']} at 20\S+Z", annotations[REFRESH])


async def test_a_model_in_a_claim_that_was_refused_is_looked_at_again(terminal: Terminal) -> None:
    world = World(**{**FETCHED, "model": {"uri": "pvc://models/m"}})
    world.put_claim("models")
    world.model_facts = json.loads(replace(FACTS, fault="config.json is no model's").to_json())
    await world.settle()
    terminal.put(world.service)
    answer = terminal.run("refresh", "chat")
    assert (answer.status, answer.error) == (0, "")
    world.model_facts = None
    world.annotate(REFRESH, terminal.service["metadata"]["annotations"][REFRESH])
    await world.settle()
    terminal.put(world.service)
    assert "the operator looks at it already" in terminal.run("refresh", "chat").error


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("hf://acme/chat@main", "the operator asks its source already"),
        ("file:///models/m", "never has another content"),
        ("pvc://models/m", "replicas read pvc://models/m themselves when they start"),
        (f"hf://acme/chat@{'1' * 40}", "never has another content"),
    ],
)
async def test_no_source_is_asked_for_nothing(terminal: Terminal, uri: str, words: str) -> None:
    world = World(**{**FETCHED, "model": {"uri": uri}})
    await world.settle()
    terminal.put(world.service)
    answer = terminal.run("refresh", "chat")
    assert (answer.status, words in answer.error) == (1, True)
    assert "annotations" not in terminal.service["metadata"]
