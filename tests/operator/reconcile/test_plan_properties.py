"""What holds of any plan, whatever was observed: it settles at once, and a part of it does no harm.

The worlds are those that schedules come to: in mid-rollout, at rest, with pods in any state. From there only
the planner acts, and the acting is pure: neither controllers nor time move.
"""

import asyncio
import copy
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from millrace_operator.cluster.kinds import CHILDREN, DEPLOYMENT, Obj
from millrace_operator.reconcile.drain import Mark
from millrace_operator.reconcile.plan import Apply, Delete, Plan, plan
from millrace_operator.reconcile.snapshot import Snapshot, object_id
from tests.operator.reconcile.schedule import SCHEDULES, STARTS, Schedule
from tests.operator.world import World

FEW, MANY = 150, 5_000
MOST_PLANS = 3
"""Until a plan is empty: one marks replicas, one lets them go, and one cleans up."""
Action = dict[str, Any] | Mark | Apply | Delete
"""One write of a plan; a status is a dict."""


def take_snapshot(world: World) -> Snapshot:
    """Return what an operator that knows everything sees now."""
    pods = tuple(world.objects("Pod"))
    loads = world._read_loads(pod["metadata"]["uid"] for pod in pods)
    children = tuple(child for kind in CHILDREN for child in world.objects(kind.kind))
    return Snapshot(
        world.service,
        children,
        pods,
        world._advise(),
        replicas=world.replicas,
        loads=loads,
        demand=world.demand,
    )


def list_actions(chosen: Plan) -> list[Action]:
    """Return a plan's writes in their order; events are courtesy."""
    status = [] if chosen.status is None else [chosen.status]
    return [*status, *chosen.marks, *chosen.applies, *chosen.deletes]


def act(snapshot: Snapshot, actions: Iterable[Action]) -> Snapshot:
    """Return what is there after these writes."""
    for action in actions:
        snapshot = _act_once(snapshot, action)
    return snapshot


def _act_once(snapshot: Snapshot, action: Action) -> Snapshot:
    if isinstance(action, Mark):
        return replace(snapshot, pods=tuple(_mark(pod, action) for pod in snapshot.pods))
    if isinstance(action, Apply):
        return _apply(snapshot, action)
    if isinstance(action, Delete):
        rest = (child for child in snapshot.children if object_id(child) != object_id(action.obj))
        return replace(snapshot, children=tuple(rest))
    return _advise_again(replace(snapshot, service={**snapshot.service, "status": action}))


def _advise_again(snapshot: Snapshot) -> Snapshot:
    """Let the advice be made from the count that status has now."""
    if snapshot.advice is None:
        return snapshot
    count = snapshot.service["status"]["scaling"]["desiredReplicas"]
    return replace(snapshot, advice=replace(snapshot.advice, made_from=count))


def _mark(pod: Obj, mark: Mark) -> Obj:
    if pod["metadata"]["uid"] != mark.uid:
        return pod
    merged = {**pod["metadata"].get("annotations", {}), **mark.annotations}
    kept = {name: value for name, value in merged.items() if value is not None}
    return {**pod, "metadata": {**pod["metadata"], "annotations": kept}}


def _apply(snapshot: Snapshot, apply: Apply) -> Snapshot:
    found = {object_id(child): child for child in snapshot.children}
    key = object_id(apply.obj)
    assert found.get(key) == apply.seen
    made = {"metadata": {"uid": f"new-{key.kind}-{key.name}"}}
    children = {**found, key: _merge(found.get(key, made), apply.obj)}
    return replace(snapshot, children=tuple(children[name] for name in sorted(children)))


def _merge(old: Any, new: Any) -> Any:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return copy.deepcopy(new)
    return {**old, **{name: _merge(old.get(name), value) for name, value in new.items()}}


def settle(world: World, snapshot: Snapshot) -> tuple[Snapshot, list[Plan]]:
    """Plan and act until a plan is empty, at one instant. Return what is there then, and the plans."""
    plans: list[Plan] = []
    while actions := list_actions(chosen := plan(world.settings, snapshot, world.now)):
        plans.append(chosen)
        assert len(plans) <= MOST_PLANS, [list_actions(each) for each in plans]
        snapshot = act(snapshot, actions)
    return snapshot, plans


def read_end(snapshot: Snapshot) -> dict[Any, Obj]:
    """Return everything that a plan writes, by its name."""
    everything = (snapshot.service, *snapshot.children, *snapshot.pods)
    return {object_id(obj): obj for obj in everything}


def assert_same_words(first: Plan, later: Plan) -> None:
    """A plan that follows at once says nothing new, but that a method ends with the last old replica.

    A plan that takes replicas away may have spoken of these: status is written before they go, as a write of
    them may be refused.
    """
    if first.status is None or later.status is None or takes_away(first):
        return
    before, after = ({**status, "rollout": None} for status in (first.status, later.status))
    assert before == after


def takes_away(chosen: Plan) -> bool:
    """Whether a Deployment gets fewer replicas, or goes."""
    lowered = (
        apply.seen is not None
        and apply.seen.get("spec", {}).get("replicas", 0) > apply.obj.get("spec", {}).get("replicas", 0)
        for apply in chosen.applies
        if apply.obj["kind"] == DEPLOYMENT.kind
    )
    return any(lowered) or any(delete.obj["kind"] == DEPLOYMENT.kind for delete in chosen.deletes)


async def reach(start: str, steps: Sequence[tuple[str, Any]]) -> World:
    schedule = Schedule(start)
    await schedule.world.settle()
    for step in steps:
        await schedule.take(step)
    return schedule.world


def check_plan(start: str, steps: Sequence[tuple[str, Any]]) -> None:
    world = asyncio.run(reach(start, steps))
    before = take_snapshot(world)
    end, plans = settle(world, before)
    for first, later in itertools.pairwise(plans):
        assert_same_words(first, later)
    actions = list_actions(plans[0]) if plans else []
    for count in range(len(actions)):
        part, _ = settle(world, act(before, actions[:count]))
        assert read_end(part) == read_end(end), f"after {count} of {actions}"


STARTING = st.sampled_from(list(STARTS))
UNHURRIED = (HealthCheck.too_slow, HealthCheck.data_too_large)


@settings(max_examples=FEW, deadline=None, derandomize=True, suppress_health_check=UNHURRIED)
@given(STARTING, SCHEDULES)
@example("Automatic", [("edit", 4), ("edit", 4), ("evict", 0), ("quota", 0), ("controllers", 1)])
@example("Automatic", [("edit", 4), ("edit", 4), ("plan", 1), ("controllers", 1), ("evict", 0)])
@example("Automatic", [("edit", 4), ("edit", 4), ("edit", 4), ("delete", 5), ("evict", 0)])
def test_a_plan_settles_at_once_and_ends_the_same_after_any_part_of_it(
    start: str, steps: list[tuple[str, Any]]
) -> None:
    check_plan(start, steps)


@pytest.mark.slow
@pytest.mark.long
@settings(max_examples=MANY, deadline=None, suppress_health_check=UNHURRIED)
@given(STARTING, SCHEDULES)
def test_many_plans_settle_at_once_and_end_the_same_after_any_part_of_them(
    start: str, steps: list[tuple[str, Any]]
) -> None:
    check_plan(start, steps)
