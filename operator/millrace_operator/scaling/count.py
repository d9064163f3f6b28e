"""The replica count that everything follows, and the part of status that explains it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from millrace_operator.api.annotations import Pin
from millrace_operator.api.change_record import NUM_CHANGES, pick_load, read_change_lines
from millrace_operator.api.conditions import MESSAGE_MAX_LENGTH, render_time
from millrace_operator.api.scaling_types import ScalingMode
from millrace_operator.api.status_lines import WORDS_LENGTH
from millrace_operator.api.types import Spec
from millrace_operator.observed.snapshot import Advice
from millrace_operator.scaling.rest import Rest

PINNED = "Pinned"
IDLE = "Idle"
ACTIVATED = "Activated"
FOREIGN_REASONS = frozenset({PINNED, IDLE, ACTIVATED, "External", "Bounds"})
"""Reasons that are not the autoscaler's."""
KEYS = ("desiredReplicas", "recommendedReplicas", "mode", "reason", "binding")
"""The text beside them is written again only if one of them changes."""
TEXT = (*KEYS, "message")


class Change(Enum):
    """The kind of a change of `status.scaling`."""

    FIGURES = auto()
    """Only figures in the text."""
    WORDS = auto()
    """Only the autoscaler's reason or binding, or a recommendation that nobody follows."""
    COUNT = auto()
    """A count, the mode, or the decider: the autoscaler, a pin, the bounds or the spec."""


@dataclass(frozen=True)
class Count:
    """The count decided now, and the `status.scaling` to write before anything follows it."""

    status: dict[str, Any]
    """The old one while only figures have changed. Without `lastChanges` and `evidence`."""
    latest: dict[str, Any]
    """With the present figures."""
    change: Change
    """The kind of its change."""
    changes: list[dict[str, Any]]
    """The last changes of the count, the newest last."""

    @property
    def desired(self) -> int:
        """The replica count."""
        return int(self.latest["desiredReplicas"])


def choose_count(
    spec: Spec,
    old: dict[str, Any],
    advice: Advice | None,
    pin: Pin | None,
    *,
    running: int,
    now: float,
    rest: Rest,
) -> Count:
    """Return the count for this mode. `old` is the old `status.scaling`, empty at first.

    `running` is what the Deployments request: the first count after a loss of status. `pin` holds now.

    The text has numbers that change all the time. While counts, mode, reason and binding stay the same, the
    old text stays too, so that such numbers alone write no status.
    """
    if spec.scaling.mode is ScalingMode.EXTERNAL:
        new = _obey_spec(spec, old.get("desiredReplicas", running))
    elif pin is not None:
        new = _obey_pin(spec, old, advice, pin)
    else:
        new = _obey_advice(spec, old, advice, old.get("desiredReplicas", running))
        new = _rest(spec, old, new, rest, now) if spec.scaling.may_rest else new
    new["message"] = new["message"][:MESSAGE_MAX_LENGTH]
    change = _find_change(old, new)
    kept = {name: old[name] for name in TEXT if name in old} if change is Change.FIGURES else new
    is_ours = spec.scaling.mode is not ScalingMode.EXTERNAL
    evidence = advice.evidence if advice and is_ours else None
    return Count(kept, new, change, _record(old, new, evidence, now))


def _record(
    old: dict[str, Any], new: dict[str, Any], evidence: Mapping[str, Any] | None, now: float
) -> list[dict[str, Any]]:
    """Return the changes so far, with this one."""
    changes = read_change_lines(old.get("lastChanges", []))
    before, after = old.get("desiredReplicas"), new["desiredReplicas"]
    if before is None or before == after:
        return changes
    change = {
        "at": render_time(now),
        "from": before,
        "to": after,
        "reason": new["reason"],
        "binding": new["binding"],
        "message": new["message"][:WORDS_LENGTH],
        **pick_load(evidence),
    }
    return [*changes, change][-NUM_CHANGES:]


def _find_change(old: dict[str, Any], new: dict[str, Any]) -> Change:
    if new["reason"] == PINNED:
        return Change.FIGURES if _is_same_pin(old, new) else Change.COUNT
    differing = {key for key in KEYS if new.get(key) != old.get(key)}
    if not differing:
        return Change.FIGURES
    is_own = not FOREIGN_REASONS & {old.get("reason"), new["reason"]}
    words = {"reason", "binding"}
    if new["mode"] == ScalingMode.DRY_RUN and "recommendedReplicas" in old:
        words.add("recommendedReplicas")  # nobody follows it
    return Change.WORDS if is_own and differing <= words else Change.COUNT


def _is_same_pin(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether the same pin holds the same count. The count for the load beside it is a figure."""
    pin, before = (text.partition("; ")[0] for text in (new["message"], old.get("message", "")))
    is_known = new.keys() <= old.keys()
    return is_known and pin == before and all(new[key] == old[key] for key in ("desiredReplicas", "mode"))


def describe_pin(spec: Spec, pin: Pin) -> str:
    """Return the pinned count in words, with the bound of the spec that limits it."""
    bounded = _bound(spec, pin.replicas)
    if bounded == pin.replicas:
        return f"pinned at {pin}"
    if spec.scaling.min_replicas == 0 and bounded > pin.replicas:
        return f"pinned at {pin}, and a pin holds at least one replica"
    name = "maxReplicas" if bounded < pin.replicas else "minReplicas"
    return f"pinned at {pin}, and {name} makes it {bounded}"


def _obey_spec(spec: Spec, before: int) -> dict[str, Any]:
    return {
        "mode": ScalingMode.EXTERNAL.value,
        "desiredReplicas": max(before, 1) if spec.replicas is None else spec.replicas,
        "reason": "External",
        "message": "the count is spec.replicas",
        "binding": "spec.replicas",
    }


def _obey_pin(spec: Spec, old: dict[str, Any], advice: Advice | None, pin: Pin) -> dict[str, Any]:
    """Return the pinned count, and beside it the count for the load."""
    wanted = _want(spec, advice) if advice else old.get("recommendedReplicas")
    beside = {} if wanted is None else {"recommendedReplicas": wanted}
    beside_text = "" if wanted is None else f"; the autoscaler would have {wanted}"
    return {
        "mode": spec.scaling.mode.value,
        "desiredReplicas": _bound(spec, pin.replicas),
        **beside,
        "reason": PINNED,
        "message": f"{describe_pin(spec, pin)}{beside_text}",
        "binding": "pin",
    }


def _obey_advice(spec: Spec, old: dict[str, Any], advice: Advice | None, before: int) -> dict[str, Any]:
    news = None if advice and advice.is_starting and old else advice
    recommended = news.desired if news else old.get("recommendedReplicas")
    follows = spec.scaling.mode is ScalingMode.AUTOMATIC and advice is not None
    wanted = _follow(advice, before) if follows and advice else before
    desired = _bound(spec, wanted)
    beside = {} if recommended is None else {"recommendedReplicas": recommended}
    text = _explain(old, news, is_clamped=desired != wanted)
    return {"mode": spec.scaling.mode.value, "desiredReplicas": desired, **beside, **text}


def _follow(advice: Advice, before: int) -> int:
    """Return the advised count. Advice lowers only the count from which it was made."""
    return advice.desired if advice.made_from == before else max(advice.desired, before)


def _rest(spec: Spec, old: dict[str, Any], new: dict[str, Any], rest: Rest, now: float) -> dict[str, Any]:
    """Return no replica while no request comes, else `new`."""
    is_at_rest = old.get("desiredReplicas") == 0 and old.get("reason") == IDLE
    if is_at_rest and rest.is_asked:
        text = "a request has come, and there was no replica"
        return {**new, "reason": ACTIVATED, "message": text, "binding": "activation"}
    if not is_at_rest and not rest.is_due(spec.scaling.rest_seconds, now):
        return new
    text = f"no request has come for {spec.scaling.scale_to_zero_after}"
    why = {"reason": IDLE, "message": text, "binding": "scaleToZeroAfter"}
    return {"mode": spec.scaling.mode.value, "desiredReplicas": 0, **why}


def _want(spec: Spec, advice: Advice) -> int:
    """Return the count for the present load, within the bounds."""
    return _bound(spec, advice.desired if advice.wanted is None else advice.wanted)


def _bound(spec: Spec, count: int) -> int:
    return max(spec.scaling.least, min(spec.scaling.max_replicas, count))


def _explain(old: dict[str, Any], advice: Advice | None, *, is_clamped: bool) -> dict[str, str]:
    if advice is not None:
        return {"reason": advice.reason, "message": advice.message, "binding": advice.binding}
    if old and not is_clamped and old.get("reason") not in ("External", PINNED):
        return {key: old.get(key, "") for key in ("reason", "message", "binding")}
    return {"reason": "Bounds", "message": "within minReplicas and maxReplicas", "binding": "spec.scaling"}
