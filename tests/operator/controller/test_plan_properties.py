"""What holds of any plan, whatever was observed: it settles at once, and a part of it does no harm.

The worlds are those that schedules come to: in mid-rollout, at rest, with pods in any state. Some have models
that Jobs look at, ask for or fetch, claims and nodes of any kind, and an API server that refuses writes. From
there only the planner acts, and the acting is pure: neither controllers nor time move.
"""

import asyncio
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace_operator.api.model_uri import is_fetched
from millrace_operator.api.types import Spec, Status
from millrace_operator.controller.plan import Plan
from millrace_operator.kube.kinds import CONTROLLER_REVISION, DEPLOYMENT, JOB, ObjectId, is_owned, object_id
from millrace_operator.model.claims import judge_claim
from millrace_operator.model.fit import judge_fit
from millrace_operator.model.found_model import FoundModel
from millrace_operator.model.job_plan import find_report
from millrace_operator.model.pending_revision import is_begun
from millrace_operator.observed.snapshot import Snapshot
from millrace_operator.render.child import fill_name, revision_name
from millrace_operator.render.model_source import find_claim
from millrace_operator.rollout.requested_revision import find_revisions
from millrace_runtime import contract
from tests.operator.controller.circumstances import Circumstances
from tests.operator.controller.instant import (
    SETTINGS,
    Instant,
    Turn,
    has_made,
    list_actions,
    read_end,
    settle,
)
from tests.operator.controller.schedule import SCHEDULES
from tests.operator.controller.surroundings import CIRCUMSTANCES, STARTING

NUM_LOOKS = 6
LEAST_SECONDS = 1.0
"""That NUM_LOOKS looks of a service take together, where nothing but time moves."""
Steps = Sequence[tuple[str, Any]]
Starting = tuple[str, str | None, str, str, bool]


def assert_same_words(first: Turn, later: Turn) -> None:
    """A plan that follows at once says nothing new, but that a method ends with the last old replica.

    A plan that takes replicas away may have spoken of these: status is written before they go, as a write of
    them may be refused. The same is true of Jobs, and of what is refused or was refused a former leader.
    """
    one, two = first.chosen.status, later.chosen.status
    has_met = first.before.snapshot.obstacles.refusals != first.after.snapshot.obstacles.refusals
    if one is None or two is None or has_met or first.chosen.is_inherited or takes_away(first.chosen):
        return
    before, after = ({**status, "rollout": None} for status in (one, two))
    assert before == after


def takes_away(chosen: Plan) -> bool:
    """Whether a Deployment gets fewer replicas, or goes, or a Job goes."""
    lowered = (
        apply.seen is not None
        and apply.seen.get("spec", {}).get("replicas", 0) > apply.obj.get("spec", {}).get("replicas", 0)
        for apply in chosen.applies
        if apply.obj["kind"] == DEPLOYMENT.kind
    )
    return any(lowered) or any(delete.obj["kind"] in (DEPLOYMENT.kind, JOB.kind) for delete in chosen.deletes)


def see(starting: Starting, steps: Steps) -> Instant:
    """Return what is seen after these steps."""
    return asyncio.run(_reach(starting, steps)).see()


async def _reach(starting: Starting, steps: Steps) -> Circumstances:
    start, model, resources, facts, is_settled = starting
    circumstances = Circumstances(start, model, resources, facts)
    await circumstances.begin(is_settled=is_settled)
    for step in steps:
        await circumstances.take(step)
    return circumstances


def check_settling(instant: Instant) -> None:
    """Plans end at once, and in the same whatever part of the first one was written."""
    end, turns = settle(instant)
    for first, later in itertools.pairwise(turns):
        assert_same_words(first, later)
    chosen = instant.plan()
    actions = list_actions(chosen)
    for count in range(len(actions)):
        part = instant.act(actions[:count])
        part, _ = settle(part.note_words(chosen) if count else part)
        assert read_words_apart(part) == read_words_apart(end), f"after {count} of {actions}"


def read_words_apart(instant: Instant) -> dict[Any, str]:
    """Return the end as JSON, without which refused child is named: of several it is one that was tried."""
    found = {name: json.dumps(obj, sort_keys=True) for name, obj in read_end(instant).items()}
    return {name: re.sub(r"refuses \w+ [\w-]+:", "refuses a child:", text) for name, text in found.items()}


def check_looks(instant: Instant) -> None:
    """No plan asks for another one at once, now or when it is time for the next one."""
    end, turns = settle(instant)
    began = end.now
    for turn in turns:
        assert_is_later(turn.chosen)
    for _ in range(NUM_LOOKS):
        chosen = end.plan()
        assert_is_later(chosen)
        if chosen.requeue_after is None:
            return
        end, _ = settle(replace(end, now=end.now + chosen.requeue_after))
    assert end.now >= began + LEAST_SECONDS


def assert_is_later(chosen: Plan) -> None:
    assert chosen.requeue_after is None or chosen.requeue_after > 0, chosen


def check_writes(instant: Instant) -> None:
    """The API server's rules let each status be, and no plan touches what is not the service's own."""
    for turn in settle(instant)[1]:
        chosen, uid = turn.chosen, turn.before.snapshot.uid
        if chosen.status is not None:
            read = Status.model_validate(chosen.status)
            assert read.model_dump(mode="json", by_alias=True, exclude_unset=True) == chosen.status
        touched = [apply.seen for apply in chosen.applies] + [delete.obj for delete in chosen.deletes]
        assert all(is_owned(obj, uid) for obj in touched if obj is not None)
        ours = {pod["metadata"]["uid"] for pod in turn.before.snapshot.pods}
        assert ours.issuperset(mark.uid for mark in chosen.marks)


def is_pending(obj: dict[str, Any]) -> bool:
    return bool(obj["metadata"].get("labels", {}).get(contract.LABEL_PENDING) == "true")


def has_recorded(snapshot: Snapshot, record: ObjectId) -> bool:
    """Whether a revision was made, and its record says no longer what its model is alone."""
    found = snapshot.owned().get(record)
    return found is not None and not is_pending(found)


class Asked:
    """The revision that a spec asks for, where it was not made before."""

    def __init__(self, instant: Instant) -> None:
        self.instant, snapshot = instant, instant.snapshot
        self.spec = Spec.model_validate(snapshot.service["spec"])
        known = find_revisions(SETTINGS, snapshot, self.spec, instant.now)
        self.revision = known.pending.revision if known.pending else known.asked
        name = revision_name(snapshot.service, self.revision)
        self.record, self.deployment = (
            ObjectId(kind.kind, name) for kind in (CONTROLLER_REVISION, DEPLOYMENT)
        )
        self.job = ObjectId(JOB.kind, name)
        self.filler = fill_name(snapshot.service, self.revision)
        self.is_new = not (has_recorded(snapshot, self.record) or has_made(snapshot, self.deployment))
        self.is_at_hand = not is_fetched(self.spec.model.uri)
        self.model = self.find_model(instant)

    def find_model(self, instant: Instant) -> FoundModel | None:
        """Return what its Job and its record know of its model."""
        told = find_report(instant.snapshot.jobs, self.job.name, self.spec.model.uri)
        record = instant.snapshot.owned().get(self.record, {})
        return told or FoundModel.read(record.get("data", {}).get("model"))

    @property
    def is_refused(self) -> bool:
        """Whether no replica can serve what its Jobs know."""
        if self.model is None or self.model.facts is None:
            return False
        snapshot = self.instant.snapshot
        is_free = self.is_at_hand or is_begun(snapshot, self.revision)
        nodes = () if is_free else snapshot.nodes.gpus.values()
        return judge_fit(self.spec, self.model.facts, nodes).refusal is not None

    @property
    def has_no_place(self) -> bool:
        """Whether nothing can be kept in its claim."""
        claim = self.instant.snapshot.model.claim
        return self.spec.model.cache.claim is not None and judge_claim(self.spec, claim) is not None


def check_models(instant: Instant) -> None:
    """What a plan does about a model whose revision is to be made."""
    for turn in settle(instant)[1]:
        asked = Asked(turn.before)
        if asked.is_new:
            check_made(asked, turn.chosen)
            check_known(asked, turn.chosen)


def check_made(asked: Asked, chosen: Plan) -> None:
    """Of what is not known, is refused or has no place, no pod's template is written."""
    made = {object_id(apply.obj) for apply in chosen.applies if not is_pending(apply.obj)}
    is_made = bool({asked.record, asked.deployment} & made)
    assert not (is_made and asked.is_refused)
    assert not (is_made and asked.model is None and not asked.is_at_hand)
    served = {
        one["data"].get("cache", {}).get("path") for one in asked.instant.snapshot.children if "data" in one
    }
    assert not (is_made and asked.has_no_place and not any(served))
    claim = asked.instant.snapshot.model.claim
    is_bound = claim is not None and claim.is_bound and claim.name == find_claim(asked.spec.model.uri)
    assert not (asked.job in made and asked.is_at_hand and not is_bound)


def check_known(asked: Asked, chosen: Plan) -> None:
    """No part of a plan deletes what alone knows a model."""
    actions = list_actions(chosen)
    for count in range(len(actions) + 1):
        after = asked.instant.act(actions[:count])
        assert has_recorded(after.snapshot, asked.record) or asked.find_model(after) == asked.model, actions


STEPS = st.integers(0, 3).flatmap(lambda number: CIRCUMSTANCES if number else SCHEDULES)
AT_REST = ("Automatic", None, "unknown", "none", True)


@given(STARTING, STEPS)
@example(
    ("External", None, "unknown", "none", True),
    [("edit", 4), ("model", "in the image"), ("refuse", ["Deployment"]), ("plan", 1), ("mark", 1)],
)
@example(AT_REST, [("edit", 4), ("edit", 4), ("evict", 0), ("quota", 0), ("controllers", 1)])
@example(AT_REST, [("edit", 4), ("edit", 4), ("plan", 1), ("controllers", 1), ("evict", 0)])
@example(AT_REST, [("edit", 4), ("edit", 4), ("edit", 4), ("delete", 5), ("evict", 0)])
def test_a_plan_settles_at_once_and_ends_the_same_after_any_part_of_it(
    starting: Starting, steps: Steps
) -> None:
    check_settling(see(starting, steps))


@given(STARTING, STEPS)
@example(
    ("InClaim", None, "too small", "none", False),
    [
        *[
            ("model", "in a claim"),
            ("facts", "none"),
            ("refuse", ["Job"]),
            ("plan", 1),
            ("life", (0, "told")),
        ],
        *[("wait", 0.3), ("plan", 1), ("life", (0, "new")), ("wait", 0.3), ("plan", 1), ("life", (0, "new"))],
        *[("wait", 0.3), ("usurp", 8)],
    ],
)
def test_no_plan_asks_for_another_one_at_once(starting: Starting, steps: Steps) -> None:
    check_looks(see(starting, steps))


@given(STARTING, STEPS)
def test_what_a_plan_writes_may_be_written(starting: Starting, steps: Steps) -> None:
    check_writes(see(starting, steps))


@given(STARTING, STEPS)
def test_no_plan_forgets_a_model_or_makes_pods_of_one_that_is_refused(
    starting: Starting, steps: Steps
) -> None:
    check_models(see(starting, steps))


@pytest.mark.slow
@pytest.mark.long
@settings.get_profile("long")
@given(STARTING, STEPS)
def test_many_plans_settle_and_do_no_harm(starting: Starting, steps: Steps) -> None:
    """All checks of one instant: to get there takes as long as the longest of them."""
    instant = see(starting, steps)
    for check in (check_settling, check_looks, check_writes, check_models):
        check(instant)
