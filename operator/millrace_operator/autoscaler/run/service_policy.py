"""Reads the autoscaler's policy for a service from its spec and the operator's settings. Pure."""

from millrace_operator.api.types import Spec
from millrace_operator.autoscaler.decide.policy import Objective, Policy
from millrace_operator.autoscaler.run.settings import ScalingSettings
from millrace_operator.autoscaler.signals.scrapes import DEFAULT_WINDOWS, Windows


def read_policy(spec: Spec, settings: ScalingSettings, windows: Windows = DEFAULT_WINDOWS) -> Policy:
    """Return the autoscaler's policy for a service. Raises ValueError if a target is no duration."""
    return Policy(
        min_replicas=spec.scaling.least,
        max_replicas=spec.scaling.max_replicas,
        objectives=tuple(
            Objective(objective.metric.value, objective.percentile, objective.target_seconds)
            for objective in spec.scaling.objectives
        ),
        tick_seconds=settings.tick_seconds,
        scale_down_window_seconds=settings.scale_down_window_seconds,
        max_sequences=spec.engine.max_sequences,
        windows=windows,
    )
