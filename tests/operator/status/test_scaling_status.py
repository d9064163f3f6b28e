"""When the figures behind a count are written, and the record of its changes."""

from dataclasses import replace
from typing import Any

import pytest

from millrace_operator.api.change_record import NUM_CHANGES, read_change_lines
from millrace_operator.api.conditions import render_time
from millrace_operator.api.status_lines import read_objectives
from millrace_operator.api.types import Status
from millrace_operator.observed.snapshot import Advice
from millrace_operator.status.scaling_status import PERIOD_SECONDS, URGENT_PERIOD_SECONDS, has_moved
from testing.world import BEGAN, World, crash_status

SCALING = {"mode": "Automatic", "minReplicas": 1, "maxReplicas": 90}
OBJECTIVES = [{"metric": "TimeToFirstToken", "percentile": 95, "target": "2s"}]


class Seen(World):
    """A world whose autoscaler tells figures."""

    def tell(self, rate: str = "10", state: str = "Met", desired: int = 2, **other: Any) -> None:
        objective = {"metric": "TimeToFirstToken", "percentile": 95, "targetSeconds": "2", "state": state}
        evidence = {
            "observedAt": render_time(self.now),
            "arrivalsPerSecond": rate,
            "objectives": [objective],
        }
        usual = {"reason": "Steady", "message": f"{rate} requests/s", "binding": "forecast", "is_held": False}
        self.advice = Advice(desired, wanted=desired, evidence=evidence, **{**usual, **other})

    @property
    def scaling(self) -> dict[str, Any]:
        found: dict[str, Any] = self.status["scaling"]
        return found

    @property
    def evidence(self) -> dict[str, Any]:
        found: dict[str, Any] = self.scaling["evidence"]
        return found

    @property
    def changes(self) -> list[dict[str, Any]]:
        return read_change_lines(self.scaling["lastChanges"])

    @property
    def objectives(self) -> list[dict[str, Any]]:
        return read_objectives(self.evidence["latencies"])

    @property
    def states(self) -> dict[str, Any]:
        names = "starting", "startingSince", "failing", "unschedulable"
        return {name: self.evidence[name] for name in names if name in self.evidence}


async def started(**told: Any) -> Seen:
    world = Seen(scaling=SCALING)
    world.tell(**told)
    await world.settle()
    Status.model_validate(world.status)
    return world


async def test_each_change_of_the_count_is_recorded_the_newest_last() -> None:
    world = await started()
    assert "lastChanges" not in world.scaling
    world.now += 60
    world.tell(desired=3, reason="ScalingUp", message="more")
    await world.settle()
    world.now += 60
    world.edit(scaling={"mode": "External"}, replicas=1)
    await world.settle()
    assert [(c["at"], c["from"], c["to"], c["reason"], c["binding"]) for c in world.changes] == [
        ("2026-01-01T00:01:00Z", 2, 3, "ScalingUp", "forecast"),
        ("2026-01-01T00:02:00Z", 3, 1, "External", "spec.replicas"),
    ]
    assert world.changes[0]["message"] == "more"


async def test_a_change_keeps_the_load_of_its_time_which_a_person_does_not_have() -> None:
    world = await started()
    world.tell(rate="30", desired=3)
    await world.settle()
    world.edit(scaling={"mode": "External"}, replicas=1)
    await world.settle()
    first, second = world.changes
    assert first["load"] == {"arrivalsPerSecond": "30"}
    assert "load" not in second


async def test_the_record_is_short() -> None:
    world = await started()
    for number in range(30):
        world.tell(desired=3 + number, message="x" * 5000)
        await world.reconcile()
    changes = world.changes
    assert (len(changes), changes[-1]["to"], changes[0]["to"]) == (NUM_CHANGES, 32, 28)
    Status.model_validate(world.status)


async def test_figures_alone_are_written_every_ten_minutes() -> None:
    world = await started()
    world.tell(rate="20")
    assert await world.reconcile_until_quiet() == 0
    assert world.evidence["arrivalsPerSecond"] == "10"
    wait = (await world.reconcile()).look_again
    assert wait == PERIOD_SECONDS
    world.now += PERIOD_SECONDS
    world.tell(rate="11.2")
    assert await world.reconcile_until_quiet() == 1
    assert world.evidence["arrivalsPerSecond"] == "11.2"
    assert world.scaling["message"] == "11.2 requests/s"


async def test_figures_that_did_not_move_are_dated_anew_every_ten_minutes() -> None:
    """Else nobody can tell a quiet service from one whose operator is gone."""
    world = await started()
    for number in range(1, 4):
        world.now += PERIOD_SECONDS
        world.tell()
        assert await world.reconcile_until_quiet() == 1, number
        assert world.evidence["observedAt"] == render_time(world.now)
        assert world.objectives[0]["since"] == "2026-01-01T00:00:00Z"


async def test_in_trouble_figures_that_did_not_move_wait_for_ten_minutes_too() -> None:
    world = await started(state="Missed")
    world.now += URGENT_PERIOD_SECONDS
    world.tell(rate="10.9", state="Missed")
    assert await world.reconcile_until_quiet() == 0
    world.tell(rate="11.2", state="Missed")
    assert await world.reconcile_until_quiet() == 1


async def test_a_reason_that_goes_back_and_forth_is_written_once_a_minute() -> None:
    world = await started()
    for _ in range(29):
        world.now += 2
        world.tell(reason="Stabilising", binding="scaleDownWindow")
        assert await world.reconcile_until_quiet() == 0
        world.tell()
        assert await world.reconcile_until_quiet() == 0
    assert world.scaling["reason"] == "Steady"
    world.now += 2
    world.tell(reason="Stabilising", binding="scaleDownWindow")
    assert await world.reconcile_until_quiet() == 1
    assert (world.scaling["reason"], world.scaling["binding"]) == ("Stabilising", "scaleDownWindow")


async def test_a_reason_that_comes_with_a_condition_is_written_with_it() -> None:
    world = await started()
    world.now += URGENT_PERIOD_SECONDS
    world.tell(reason="SignalsMissing", binding="signals")
    assert world.advice is not None
    world.advice = replace(world.advice, is_held=True)
    assert await world.reconcile_until_quiet() == 1
    assert world.scaling["reason"] == "SignalsMissing"


async def test_a_recommendation_that_nobody_follows_is_written_once_a_minute() -> None:
    world = await started()
    world.edit(scaling={**SCALING, "mode": "DryRun"})
    await world.settle()
    before = len(world.cluster.writes)
    for tick in range(300):
        world.now += 2
        world.tell(desired=3 + tick % 2)
        await world.reconcile()
    assert len(world.cluster.writes) - before <= 11
    world.now += URGENT_PERIOD_SECONDS
    world.tell(desired=5)
    await world.settle()
    assert (world.scaling["recommendedReplicas"], world.scaling["desiredReplicas"]) == (5, 2)


async def test_conditions_that_go_back_and_forth_are_written_once_a_minute() -> None:
    world = Seen(scaling={**SCALING, "objectives": OBJECTIVES})
    world.tell(are_objectives_met=True, objectives_message="kept")
    await world.settle()
    for second in range(2, 60, 2):
        world.now = BEGAN + second
        is_bad = bool(second % 4)
        world.tell(are_objectives_met=not is_bad, objectives_message="as it is", is_held=is_bad)
        assert await world.reconcile_until_quiet() == int(second == 2), "that they are lost is told at once"
    world.tell(are_objectives_met=False, objectives_message="missed")
    assert (await world.reconcile()).look_again == 62 - 58  # it looks again though nobody tells
    world.now += 4
    assert await world.reconcile_until_quiet() == 1
    assert world.condition("ObjectivesMet")["message"] == "missed"
    assert world.condition("ScalingActive")["status"] == "True"


async def test_objectives_that_nobody_can_judge_are_unknown_and_only_a_new_leader_keeps_the_truth() -> None:
    world = Seen(scaling={**SCALING, "objectives": OBJECTIVES})
    world.tell(are_objectives_met=True, objectives_message="kept")
    await world.settle()
    world.now += 3600
    world.advice = None
    await world.settle()
    assert world.condition("ObjectivesMet")["status"] == "True"
    world.tell(are_objectives_met=None, objectives_message="too few requests")
    await world.settle()
    found = world.condition("ObjectivesMet")
    assert [found[name] for name in ("status", "reason", "message")] == [
        "Unknown",
        "TooFewRequests",
        "too few requests",
    ]


async def test_a_condition_that_changes_with_the_count_never_waits() -> None:
    world = Seen(scaling={**SCALING, "objectives": OBJECTIVES})
    world.tell(are_objectives_met=True, objectives_message="kept")
    await world.settle()
    world.tell(desired=3, are_objectives_met=False, objectives_message="missed")
    await world.settle()
    assert world.scaling["desiredReplicas"] == 3
    assert world.condition("ObjectivesMet")["status"] == "False"


@pytest.mark.parametrize("trouble", ["missed", "lacking"])
async def test_in_trouble_they_are_written_every_minute(trouble: str) -> None:
    world = await started(state="Missed" if trouble == "missed" else "Met")
    if trouble == "lacking":
        world.capacity = 2
        world.tell(desired=3)
        await world.settle()
    told = {"state": "Missed"} if trouble == "missed" else {"desired": 3}
    world.now += URGENT_PERIOD_SECONDS - 1
    world.tell(rate="20", **told)
    assert await world.reconcile_until_quiet() == 0
    assert (await world.reconcile()).look_again == 1
    world.now += 1
    assert await world.reconcile_until_quiet() == 1


async def test_whatever_else_is_written_takes_the_figures_along() -> None:
    world = await started()
    world.tell(rate="10.1", are_objectives_met=True, objectives_message="kept")
    assert await world.reconcile_until_quiet() == 0  # no objectives are written in this spec
    world.edit(scaling={**SCALING, "maxReplicas": 80})
    assert await world.reconcile_until_quiet() == 1
    assert world.evidence["arrivalsPerSecond"] == "10.1"


async def test_an_objective_keeps_the_time_since_when_it_is_missed() -> None:
    world = await started()
    assert world.objectives[0]["since"] == render_time(world.now)
    world.now += 600
    world.tell(state="Missed", rate="20")
    await world.settle()
    since = world.objectives[0]["since"]
    assert since == render_time(world.now)
    world.now += 60
    world.tell(state="Missed", rate="40")
    world.restart_operator()
    await world.settle()
    assert world.evidence["arrivalsPerSecond"] == "40"
    assert world.objectives[0]["since"] == since


async def test_replicas_are_counted_by_what_they_do() -> None:
    world = await started()
    world.capacity = 2
    world.tell(desired=4)
    await world.settle()
    world.now += 60
    world.tell(desired=4, rate="99")
    await world.settle()
    assert world.states == {"unschedulable": 2}


async def test_a_replica_that_crashes_is_failing_and_a_fresh_one_starts() -> None:
    world = Seen(scaling=SCALING)
    world.tell(desired=1)
    await world.reconcile_until_quiet()
    world.broken[world.status["updateRevision"]] = crash_status()
    await world.settle()
    assert world.states == {"failing": 1}
    world = Seen(scaling=SCALING)
    world.tell(desired=1)
    await world.reconcile_until_quiet()
    world.broken[world.status["updateRevision"]] = {"phase": "Pending"}
    await world.settle()
    assert world.states == {"starting": 1, "startingSince": "2026-01-01T00:00:01Z"}


async def test_a_new_leader_leaves_the_figures_until_it_knows_its_own() -> None:
    world = await started()
    before = world.evidence
    world.advice = None
    world.restart_operator()
    world.now += 3600
    assert await world.reconcile_until_quiet() == 0
    assert world.evidence == before


async def test_mode_external_tells_its_replicas_alone() -> None:
    world = Seen(scaling={"mode": "External"}, replicas=2)
    await world.settle()
    assert world.evidence.keys() - world.states.keys() == {"observedAt"}


async def test_mode_external_has_no_figures_to_look_at_again() -> None:
    world = Seen(scaling={"mode": "External"}, replicas=2)
    await world.settle()
    world.now += 24 * 3600
    assert await world.reconcile_until_quiet() == 0
    assert (await world.reconcile()).look_again is None


async def test_what_the_load_asks_for_beside_a_pin_is_refreshed_with_the_figures() -> None:
    world = await started()
    metadata = {
        **world.service["metadata"],
        "annotations": {"millrace.dev/pin": "5 until 2026-02-01T00:00:00Z"},
    }
    world.cluster.put({**world.service, "metadata": metadata})
    await world.settle()
    world.now += PERIOD_SECONDS
    world.tell(desired=4, rate="20")
    assert await world.reconcile_until_quiet() == 1
    assert (world.scaling["desiredReplicas"], world.scaling["recommendedReplicas"]) == (5, 4)
    assert world.scaling["message"].endswith("the autoscaler would have 4")


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        ("10", "10.9", False),
        ("10", "11.2", True),
        ("10", "9.1", False),
        ("0", "0.01", True),
        (0, 0, False),
        (3, 4, True),
        ({"a": "1"}, {"a": "1", "b": "1"}, True),
        ({"samples": 1, "since": "x"}, {"samples": 90, "since": "y"}, False),
        ([{"a": "1"}], [{"a": "1"}, {"a": "2"}], True),
        ("saturation", "P95 TimeToFirstToken", True),
        (True, False, True),
        ("1e-06", "1.05e-06", False),
    ],
)
def test_a_figure_has_moved_by_more_than_a_tenth(*, before: Any, after: Any, moved: bool) -> None:
    assert has_moved({"a": before}, {"a": after}) is moved
