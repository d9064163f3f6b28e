"""The decision: a replica count, its reason, and the line of status that explains it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.decide.situation import Estimate, Situation
from millrace_operator.autoscaler.signals.observation import Unplaced
from millrace_operator.autoscaler.signals.reading import EVERYTHING

LOAD_SIGNALS = (EVERYTHING, "age", "running", "waiting", "arrivals", "recent_arrivals")
"""The line of status names these if they are unknown. Others have no samples whenever no request comes."""
PODS_NAMED = 3
WORDS_QUOTED = 200
BINDINGS = {
    "maxReplicas": "limited by maxReplicas",
    "capacity": "no node has room for so many",
    "minReplicas": "kept up by minReplicas",
    "scaleUpRate": "limited to max(2x, +4) a step",
    "scaleDownRate": "limited to one replica or 10 % a step",
    "scaleDownWindow": "no lower until the whole scale-down window allows it",
    "scaleDownInterval": "no lower until the last step down has settled",
    "deadBand": "no lower than surely suffices for a fifth more load",
    "signals": "no lower while signals are missing",
    "rollout": "no lower while replicas of two revisions serve",
    "objectives": "no lower while an objective is missed, or likely to be",
    "current": "nothing asks for a change",
}


class Reason(StrEnum):
    """The reason for the count, in one word."""

    SIGNALS_MISSING = "SignalsMissing"
    STARTING = "Starting"
    """No replica has been Ready for long enough to have samples: no signal is missing yet."""
    LEARNING = "Learning"
    SCALING_UP = "ScalingUp"
    SCALING_DOWN = "ScalingDown"
    STABILISING = "Stabilising"
    AT_MAXIMUM = "AtMaximum"
    AT_CAPACITY = "AtCapacity"
    AT_MINIMUM = "AtMinimum"
    SLO_INFEASIBLE = "SLOInfeasible"
    STEADY = "Steady"


@dataclass(frozen=True)
class Decision:
    """A replica count and its reason."""

    desired: int
    reason: Reason
    message: str
    binding: str
    """The candidate or limit that set the count."""
    candidates: dict[str, int]
    is_held: bool
    """Whether the count stays because too little is known to change it."""
    estimate: Estimate
    limits: tuple[str, ...] = ()
    """The limits of pacing and bounds that changed the largest candidate."""
    prediction_error: float | None = None
    """The error of recent predictions of the part in time; None while it is unknown."""


def describe_decision(
    situation: Situation, reason: str, candidates: dict[str, int], binding: str, desired: int
) -> str:
    """Return one line: the decision, the term that decided, and its figures."""
    estimate, signals = situation.estimate, situation.signals
    needed = {*LOAD_SIGNALS, *signals.unanswered}
    unknown = {name: why for name, why in signals.rejected.items() if name in needed}
    before = "" if desired == situation.current else f"{situation.current} -> "
    replicas = "replica" if desired == 1 else "replicas"
    parts = [
        f"{reason}: {before}{desired} {replicas}",
        _name_binding(binding, candidates),
        *_name_load(situation),
    ]
    if estimate.violated:
        parts.append(f"missed as measured: {', '.join(estimate.violated)}")
    if estimate.infeasible:
        named = ", ".join(estimate.infeasible)
        parts.append(f"{named} cannot be met by an idle replica, so it is not scaled on: raise its target")
    if unplaced := signals.fleet.unplaced:
        parts.append(f"no node has room for {_name_pods(frozenset(unplaced))}{_quote(unplaced)}")
    if situation.silent:
        parts.append(f"no samples of {_name_pods(situation.silent)}")
    if unknown and not situation.is_informed and reason != Reason.STARTING:
        parts.append("unknown: " + ", ".join(f"{name} ({why})" for name, why in unknown.items()))
    return "; ".join(parts)


def _name_binding(binding: str, candidates: dict[str, int]) -> str:
    if binding in candidates:
        return f"{binding} asks for {candidates[binding]}"
    wanted = max(candidates.items(), key=lambda item: item[1], default=None)
    asked = f"{wanted[0]} asks for {wanted[1]}, " if wanted else ""
    return asked + BINDINGS[binding]


def _name_load(situation: Situation) -> list[str]:
    estimate, signals, parts = situation.estimate, situation.signals, []
    if estimate.forecast is not None and estimate.rate is not None:
        parts.append(f"{estimate.rate:.2f} requests/s, {estimate.forecast:.2f} expected after a cold start")
    if estimate.capacity:
        carried, limit = estimate.capacity.rate, estimate.capacity.limit
        known = ", as tried at start" if situation.memory.model.is_only_tried else ""
        parts.append(f"one replica carries {carried:.2f} requests/s (limit: {limit}{known})")
    else:
        parts.append(_describe_missing_plan(situation.memory))
    if signals.waiting:
        parts.append(f"{signals.waiting:.0f} waiting")
    if situation.num_starting > 0:
        parts.append(f"{situation.num_starting} not ready yet")
    return parts


def _describe_missing_plan(memory: Memory) -> str:
    """Say why there is no plan."""
    if (doubt := memory.model.describe_doubt()) is not None:
        return doubt
    if memory.prompt_tokens is None or not memory.generation_tokens:
        return "the length of its requests is not known yet"
    return "steps that replicas tried before their first request are too unlike this load, or too slow for it"


def _quote(unplaced: Mapping[str, Unplaced]) -> str:
    """Return the scheduler's message about one of the pods."""
    words = unplaced[min(unplaced)].words
    short = words if len(words) <= WORDS_QUOTED else f"{words[: WORDS_QUOTED - 1]}…"
    return f": {short}" if short else ""


def _name_pods(pods: frozenset[str]) -> str:
    named, others = sorted(pods)[:PODS_NAMED], len(pods) - PODS_NAMED
    return ", ".join(named) + (f" and {others} more" if others > 0 else "")
