"""A pinned count, as whole sequences: while it holds, when it lapses, and with its operator away."""

import dataclasses
from typing import Any

from millrace_operator.api.annotations import PIN_ANNOTATION
from millrace_operator.api.conditions import render_time
from millrace_operator.observed.snapshot import Advice
from testing.world import KEY, World, ready_status

SCALING = {"mode": "Automatic", "minReplicas": 1, "maxReplicas": 8}
SEVEN = Advice(7, "Steady", "load", "forecast", is_held=False, wanted=7)


def pin(world: World, text: str | None) -> None:
    metadata = {key: value for key, value in world.service["metadata"].items() if key != "annotations"}
    beside = {} if text is None else {"annotations": {PIN_ANNOTATION: text}}
    world.cluster.put({**world.service, "metadata": {**metadata, **beside}})


def pin_for(world: World, count: int, seconds: float) -> None:
    pin(world, f"{count} until {render_time(world.now + seconds)}")


async def started(advice: Advice | None = None, **scaling: Any) -> World:
    world = World(scaling={**SCALING, **scaling})
    world.advice = advice
    await world.settle()
    return world


def scaling_of(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.status["scaling"]
    return found


def counts(world: World) -> tuple[int, int]:
    """The count in status, and the pods there are."""
    return scaling_of(world)["desiredReplicas"], len(world.pods())


async def test_a_pin_is_obeyed_until_it_lapses_and_then_the_autoscaler_goes_on() -> None:
    world = await started(dataclasses.replace(SEVEN, desired=4, wanted=3))
    assert counts(world) == (4, 4)
    pin_for(world, 6, 3600)
    again = (await world.reconcile()).look_again
    assert again is not None
    await world.settle()
    assert counts(world) == (6, 6)
    scaling = scaling_of(world)
    assert (scaling["reason"], scaling["binding"], scaling["recommendedReplicas"]) == ("Pinned", "pin", 3)
    assert scaling["message"] == "pinned at 6 until 2026-01-01T01:00:00Z; the autoscaler would have 3"
    assert world.condition("Pinned")["status"] == "True"
    world.now += 1800
    wait = (await world.reconcile()).look_again
    assert wait is not None
    assert 1800 <= wait <= 1802
    world.now += wait
    world.advice = dataclasses.replace(SEVEN, desired=5, reason="ScalingDown", wanted=3)
    await world.settle()
    assert counts(world) == (5, 5)
    assert scaling_of(world)["reason"] == "ScalingDown"
    assert (world.condition("Pinned")["status"], world.condition("Pinned")["reason"]) == (
        "False",
        "PinLapsed",
    )
    pin(world, None)
    await world.settle()
    assert "Pinned" not in {condition["type"] for condition in world.status["conditions"]}


async def test_figures_that_change_under_a_pin_write_nothing() -> None:
    world = await started(SEVEN)
    pin_for(world, 6, 3600)
    await world.settle()
    world.advice = dataclasses.replace(SEVEN, desired=5, reason="ScalingDown", message="less", wanted=2)
    assert await world.reconcile_until_quiet() == 0


async def test_a_pin_that_is_made_longer_is_told_at_once() -> None:
    world = await started(SEVEN)
    pin_for(world, 6, 3600)
    await world.settle()
    pin_for(world, 6, 7200)
    await world.settle()
    assert render_time(world.now + 7200) in scaling_of(world)["message"]


async def test_a_lower_pinned_count_marks_the_idlest_before_any_goes() -> None:
    world = await started(dataclasses.replace(SEVEN, desired=3))
    busy = [pod["metadata"]["name"] for pod in world.pods()][1]
    world.advice = dataclasses.replace(SEVEN, desired=3, in_flight={busy: 9.0})
    world.cluster.writes.clear()
    pin_for(world, 1, 3600)
    await world.settle()
    kinds = [kind for _, kind, _ in world.cluster.writes if kind in ("InferenceService", "Pod", "Deployment")]
    assert kinds[:4] == ["InferenceService", "Pod", "Pod", "Deployment"]
    assert [pod["metadata"]["name"] for pod in world.pods()] == [busy]


async def test_a_new_operator_holds_the_pin_before_it_has_decided_anything() -> None:
    world = await started(SEVEN)
    pin_for(world, 3, 3600)
    await world.settle()
    world.advice = None
    world.restart_operator()
    assert await world.reconcile_until_quiet() == 0
    assert counts(world) == (3, 3)
    assert scaling_of(world)["recommendedReplicas"] == 7


async def test_an_operator_that_was_away_at_the_lapse_goes_on_from_the_count_in_status() -> None:
    world = await started(SEVEN)
    pin_for(world, 3, 60)
    await world.settle()
    world.now += 3600
    world.advice = None
    world.restart_operator()
    await world.settle()
    assert counts(world) == (3, 3)
    assert (scaling_of(world)["reason"], scaling_of(world)["binding"]) == ("Bounds", "spec.scaling")
    world.advice = dataclasses.replace(SEVEN, desired=4)
    await world.settle()
    assert counts(world) == (4, 4)


async def test_bounds_that_change_limit_the_pin_and_say_so() -> None:
    world = await started(SEVEN)
    pin_for(world, 6, 3600)
    await world.settle()
    world.edit(scaling={**SCALING, "maxReplicas": 4})
    await world.settle()
    assert counts(world) == (4, 4)
    assert "maxReplicas makes it 4" in scaling_of(world)["message"]
    assert "maxReplicas makes it 4" in world.condition("Pinned")["message"]
    world.edit(scaling={**SCALING, "minReplicas": 7})
    await world.settle()
    assert counts(world) == (7, 7)
    assert "minReplicas makes it 7" in scaling_of(world)["message"]
    world.edit(scaling=SCALING)
    await world.settle()
    assert counts(world) == (6, 6)
    assert "makes it" not in scaling_of(world)["message"]


async def test_what_is_no_pin_is_named_and_changes_nothing() -> None:
    world = await started(SEVEN)
    pin(world, "lots until I say so")
    await world.settle()
    assert counts(world) == (7, 7)
    assert scaling_of(world)["reason"] == "Steady"
    found = world.condition("Pinned")
    assert (found["status"], found["reason"]) == ("False", "PinInvalid")
    assert found["message"].endswith("write for example kubectl millrace pin chat 8 --for 2h -n shop")
    assert world.condition("Degraded")["status"] == "False"


async def test_a_dry_run_obeys_a_pin_and_keeps_its_count_afterwards() -> None:
    world = await started(SEVEN, mode="DryRun")
    assert counts(world) == (1, 1)
    pin_for(world, 2, 60)
    await world.settle()
    assert counts(world) == (2, 2)
    assert scaling_of(world)["recommendedReplicas"] == 7
    world.now += 61
    await world.settle()
    assert counts(world) == (2, 2)


async def test_mode_external_has_its_count_from_the_spec_and_says_that_the_pin_does_nothing() -> None:
    world = World(scaling={"mode": "External"}, replicas=2)
    pin_for(world, 5, 3600)
    await world.settle()
    assert counts(world) == (2, 2)
    assert (world.condition("Pinned")["status"], world.condition("Pinned")["reason"]) == ("False", "External")
    assert "write spec.replicas" in world.condition("Pinned")["message"]
    assert all(pod["status"] == ready_status() for pod in world.pods())
    assert world.service["metadata"]["name"] == KEY.name


async def test_a_pin_at_zero_says_why_it_holds_one() -> None:
    world = await started(SEVEN, minReplicas=0)
    pin_for(world, 0, 3600)
    await world.settle()
    assert counts(world) == (1, 1)
    assert "a pin holds at least one replica" in world.condition("Pinned")["message"]
    assert "minReplicas" not in scaling_of(world)["message"]
