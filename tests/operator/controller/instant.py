"""One service at one instant: plans are made and acted on there, and neither controllers nor time move.

The acting is pure, and does what `writer.py` does: what is refused, or needs what is not there,
is not written.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from millrace_operator.api.conditions import render_time
from millrace_operator.api.types import Spec
from millrace_operator.controller.children import Apply, Delete
from millrace_operator.controller.plan import Plan, plan
from millrace_operator.kube.kinds import POD, Obj, ObjectId, is_owned, object_id
from millrace_operator.observed.snapshot import Snapshot
from millrace_operator.render.child import find_unmet
from millrace_operator.render.settings import RenderSettings
from millrace_operator.rollout.requested_revision import find_awaited
from millrace_operator.scaling.drain import Mark

SETTINGS = RenderSettings()
DELETIONS = "delete"
"""Among the kinds that are refused: nothing may be deleted."""
WORDS = "a policy of the cluster forbids it"
MOST_TURNS = 4
"""Until a plan is empty: one marks replicas or meets what is refused, one lets them go or tells it, and one
cleans up. What a former leader told may take one more."""
Action = dict[str, Any] | Mark | Apply | Delete
"""One write of a plan; a status is a dict."""


@dataclass(frozen=True)
class Instant:
    """What an operator sees of a service, and of which kinds the API server lets it write nothing."""

    snapshot: Snapshot
    now: float
    refused: frozenset[str] = frozenset()

    def plan(self) -> Plan:
        """Return what is to be done now."""
        return plan(SETTINGS, self.snapshot, self.now)

    def act(self, actions: Iterable[Action]) -> "Instant":
        """Return what is there after these writes, as far as they can be made."""
        after = self
        for action in actions:
            after = after._act_once(action)
        return after

    def finish(self, chosen: Plan) -> "Instant":
        """Return what is there after a whole plan: what it did not try is refused no longer."""
        after = self.act(list_actions(chosen))
        tried = {object_id(write.obj) for write in chosen.list_writes()}
        found = after.snapshot.obstacles.refusals.items()
        kept = {key: words for key, words in found if key in tried or key.kind == POD.kind}
        return after._meet(refusals=kept, is_tried=True)

    def note_words(self, chosen: Plan) -> "Instant":
        """Return the same, where the status of a plan was written."""
        return (
            self._see(worded_at=self.now) if chosen.status is not None and chosen.has_only_new_words else self
        )

    def is_open(self, action: Action) -> bool:
        """Whether nothing is in the way of a write now."""
        if isinstance(action, dict):
            return True
        return not (_identify(action)[0] in self.refused or self._find_unmet(action))

    def _act_once(self, action: Action) -> "Instant":
        if isinstance(action, dict):
            return self._write_status(action)
        if self._find_unmet(action):
            return self
        kind, identity = _identify(action)
        refusals = self.snapshot.obstacles.refusals
        if kind in self.refused:
            return self._meet(refusals={**refusals, identity: WORDS})
        if isinstance(action, Mark):
            return self._see(pods=tuple(_mark(pod, action) for pod in self.snapshot.pods))
        after = self._meet(refusals={key: words for key, words in refusals.items() if key != identity})
        if isinstance(action, Delete):
            rest = (child for child in after.snapshot.children if object_id(child) != identity)
            return after._see(children=tuple(rest))
        return after._apply(action)

    def _find_unmet(self, action: Mark | Apply | Delete) -> tuple[ObjectId, ...]:
        needs = action.needs if isinstance(action, Apply) else ()
        return find_unmet(needs, self.snapshot.owned())

    def _write_status(self, status: dict[str, Any]) -> "Instant":
        """Let the advice be made from the count that status has now."""
        advice = self.snapshot.advice
        if advice is not None:
            advice = replace(advice, made_from=status["scaling"]["desiredReplicas"])
        return self._see(service={**self.snapshot.service, "status": status}, advice=advice)

    def _apply(self, apply: Apply) -> "Instant":
        found = {object_id(child): child for child in self.snapshot.children}
        key = object_id(apply.obj)
        assert found.get(key) == apply.seen
        made = {"uid": f"new-{key.kind}-{key.name}", "creationTimestamp": render_time(self.now)}
        before = None if apply.is_recreated else found.get(key)
        children = {**found, key: _merge(before or {"metadata": made}, apply.obj)}
        return self._see(children=tuple(children[name] for name in sorted(children)))

    def _see(self, **changes: Any) -> "Instant":
        """Return the same with these changes of the snapshot, and a look that is awaited from now on."""
        return replace(self, snapshot=note_look_time(replace(self.snapshot, **changes), self.now))

    def _meet(self, **changes: Any) -> "Instant":
        """Return the same with these changes of what writes have met."""
        return self._see(obstacles=replace(self.snapshot.obstacles, **changes))


def note_look_time(snapshot: Snapshot, now: float) -> Snapshot:
    """Return the same with since when the operator waits for a look at a model, as `Looks` notes it."""
    since = _find_look_time(snapshot, snapshot.model.looking_since, now)
    return replace(snapshot, model=replace(snapshot.model, looking_since=since))


def _find_look_time(snapshot: Snapshot, before: float | None, now: float) -> float | None:
    try:
        spec = Spec.model_validate(snapshot.service["spec"])
    except ValueError:
        return None
    awaited = find_awaited(snapshot.service, spec, snapshot.children)
    if awaited is None:
        return None
    return now if awaited.is_new or before is None else before


def _identify(action: Mark | Apply | Delete) -> tuple[str, ObjectId]:
    """Return under which word an action is refused, and of what."""
    if isinstance(action, Mark):
        return POD.kind, ObjectId(POD.kind, action.pod)
    identity = object_id(action.obj)
    return (DELETIONS if isinstance(action, Delete) else identity.kind), identity


def _mark(pod: Obj, mark: Mark) -> Obj:
    if pod["metadata"]["uid"] != mark.uid:
        return pod
    merged = {**pod["metadata"].get("annotations", {}), **mark.annotations}
    kept = {name: value for name, value in merged.items() if value is not None}
    return {**pod, "metadata": {**pod["metadata"], "annotations": kept}}


def _merge(old: Any, new: Any) -> Any:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return copy.deepcopy(new)
    return {**old, **{name: _merge(old.get(name), value) for name, value in new.items()}}


def list_actions(chosen: Plan) -> list[Action]:
    """Return a plan's writes in their order; events are courtesy."""
    status = [] if chosen.status is None else [chosen.status]
    return [*status, *chosen.marks, *chosen.applies, *chosen.deletes]


class Turn(NamedTuple):
    """A plan, and what is there after it."""

    before: Instant
    chosen: Plan
    after: Instant


def settle(instant: Instant) -> tuple[Instant, list[Turn]]:
    """Plan and act until that changes nothing, at one instant. Return what is there then, and the turns.

    A plan is empty then, but for what is refused.
    """
    turns: list[Turn] = []
    while True:
        chosen = instant.plan()
        after = instant.finish(chosen).note_words(chosen)
        if after == instant:
            assert not [action for action in list_actions(chosen) if instant.is_open(action)], chosen
            return instant, turns
        turns.append(Turn(instant, chosen, after))
        assert len(turns) <= MOST_TURNS, [list_actions(turn.chosen) for turn in turns]
        instant = after


def read_end(instant: Instant) -> dict[Any, Obj]:
    """Return everything that a plan writes, by its name."""
    snapshot = instant.snapshot
    everything = (snapshot.service, *snapshot.children, *snapshot.pods)
    return {object_id(obj): obj for obj in everything}


def has_made(snapshot: Snapshot, identity: ObjectId) -> bool:
    """Whether the service has this object of its own."""
    return any(object_id(one) == identity and is_owned(one, snapshot.uid) for one in snapshot.children)
