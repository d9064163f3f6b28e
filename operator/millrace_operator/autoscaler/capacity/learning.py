"""Which steps teach the model, and how much each of them does. Pure."""

import math
from collections.abc import Mapping, Sequence

from millrace_operator.autoscaler.capacity.latency_model import FORGETTING, LatencyModel
from millrace_operator.autoscaler.decide.policy import Policy
from millrace_operator.autoscaler.signals.observation import Signals, StepMoments


def find_warm(
    signals: Signals, ready_since: dict[str, float], policy: Policy, now: float
) -> list[StepMoments]:
    """Return the steps of every replica whose window holds none of its first seconds: they poison the fit."""
    least = policy.warm_up_seconds + policy.windows.recent
    return [steps for steps in signals.steps if now - ready_since.get(steps.pod, now) >= least]


def mean_context(steps: Sequence[StepMoments]) -> float | None:
    """Return the keys that a sequence in a batch reads on average; None where there were no sequences."""
    sequences = sum(step.sequences * step.num_steps for step in steps)
    if sequences <= 0:
        return None
    return sum(step.context_tokens * step.num_steps for step in steps) / sequences


def begin(model: LatencyModel, signals: Signals) -> LatencyModel:
    """Return what replicas tried before they served anybody, for as long as nobody has taught the model.

    Of several replicas the one in the middle: another may have been started on a busy node.
    """
    if model.num_samples > model.num_tried or signals.fleet.is_mixed or not signals.trial_steps:
        return model
    tried = sorted(signals.trial_steps.values(), key=lambda steps: sum(step.seconds for step in steps))
    begun = LatencyModel.begin(tried[len(tried) // 2])
    return begun if begun.num_samples else model


def learn(
    model: LatencyModel,
    learned: Mapping[str, float],
    new_steps: Sequence[StepMoments],
    policy: Policy,
    now: float,
    *,
    num_warm: int,
) -> LatencyModel:
    """Learn what is new in each replica's window since it was learned from last.

    However many replicas there are, the same time passes until what they told is replaced.
    """
    for steps in new_steps:
        since = now - learned.get(steps.pod, -math.inf)
        weight = min(since / policy.windows.recent, 1.0)
        model = model.learn(steps, weight=weight, forgetting=FORGETTING * weight / num_warm)
    return model
