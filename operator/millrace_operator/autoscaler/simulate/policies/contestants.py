"""The rules of the comparison, each with its one knob, the rule's default, and the values to try.

Ours has no knob here: it runs as shipped.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from millrace_operator.autoscaler.decide.policy import Objective, Policy
from millrace_operator.autoscaler.signals.scrapes import Windows, fit_windows
from millrace_operator.autoscaler.simulate.policies.concurrency import Knative, KubeAI
from millrace_operator.autoscaler.simulate.policies.dynamo import DynamoLoad, DynamoThroughput
from millrace_operator.autoscaler.simulate.policies.hpa import (
    Bounds,
    HpaInFlight,
    HpaQueue,
    Keda,
    Rules,
    ThroughHpa,
)
from millrace_operator.autoscaler.simulate.policies.llmd import Inferno, LlmD, Wva, watch
from millrace_operator.autoscaler.simulate.run import Ours, Run, Scaler, Setting, Static
from millrace_operator.autoscaler.simulate.workloads import Workload

OURS, CLAIRVOYANT, STATIC = "millrace", "clairvoyant", "static"
HPA_QUEUE = "hpa-queue"

Build = Callable[[Workload, float, Windows], Scaler]


def _watch_as_is(objectives: tuple[Objective, ...]) -> tuple[Objective, ...]:
    return objectives


@dataclass(frozen=True)
class Contestant:
    """A rule."""

    knob: str
    default: float
    values: tuple[float, ...]
    """The values to try, the default among them."""
    build: Build = field(repr=False)
    watch: Callable[[tuple[Objective, ...]], tuple[Objective, ...]] = _watch_as_is
    """Returns the percentiles that the rule reads, if they are not the objectives' own."""
    is_whole: bool = False
    """Whether its knob is a whole number."""

    def play(self, workload: Workload, knob: float, setting: Setting) -> Run:
        """Simulate it. A static count is there from the beginning."""
        scaler = self.build(workload, knob, fit_windows(setting.scraping.interval_seconds))
        if isinstance(scaler, Static):
            setting = replace(setting, initial_replicas=scaler.replicas)
        return workload.play(replace(setting, objectives=self.watch(setting.objectives)), scaler)


def _bound(workload: Workload) -> Bounds:
    return Bounds(workload.min_replicas, workload.max_replicas)


def _build_static(workload: Workload, count: float, windows: Windows) -> Scaler:
    return Static(_bound(workload).clamp(count), windows=windows)


WVA_RULES = Rules(down_window=120.0)
"""The rules of the HPA behind it. llm-d's example has 120 s for both directions. With that it kept 99.07 % of
W2 in time with 12.5 replicas, and without the window for going up 99.24 % with 11.2: it gets the better
setting."""
IN_FLIGHT = (8.0, 12.0, 16.0, 24.0, 32.0, 64.0)
"""Replicas hold 24 to 90 requests at their limit."""

PEERS: dict[str, Contestant] = {
    STATIC: Contestant("replicas", 12, (8, 10, 11, 12, 13, 14, 16), _build_static, is_whole=True),
    "hpa-in-flight": Contestant(
        "target", 64, IN_FLIGHT, lambda load, knob, windows: HpaInFlight(_bound(load), knob, windows)
    ),
    HPA_QUEUE: Contestant(
        "target",
        5,
        (0.1, 0.3, 1.0, 2.0, 5.0),
        lambda load, knob, windows: HpaQueue(_bound(load), knob, windows),
    ),
    "keda": Contestant(
        "target", 64, IN_FLIGHT, lambda load, knob, windows: Keda(_bound(load), knob, windows)
    ),
    "knative": Contestant(
        "target",
        100,
        (12.0, 18.0, 24.0, 36.0, 50.0, 100.0),
        lambda load, knob, windows: Knative(_bound(load), knob, windows),
    ),
    "kubeai": Contestant(
        "target", 100, (*IN_FLIGHT, 100.0), lambda load, knob, windows: KubeAI(_bound(load), knob, windows)
    ),
    "wva-saturation": Contestant(
        "up",
        0.85,
        (0.25, 0.4, 0.55, 0.7, 0.85),
        lambda load, knob, windows: ThroughHpa(_bound(load), Wva(_bound(load), knob, windows), WVA_RULES),
    ),
    "wva-inferno": Contestant(
        "part",
        1.0,
        (0.35, 0.45, 0.55, 0.7, 1.0),
        lambda load, knob, windows: ThroughHpa(
            _bound(load), Inferno(_bound(load), load.objectives, knob, windows), WVA_RULES
        ),
    ),
    "dynamo-throughput": Contestant(
        "factor",
        1.0,
        (1.0, 1.25, 1.5, 2.0),
        lambda load, knob, windows: DynamoThroughput(
            _bound(load), load.objectives, load.hardware, knob, windows
        ),
    ),
    "dynamo-load": Contestant(
        "part",
        1.0,
        (0.2, 0.35, 0.5, 0.7, 1.0),
        lambda load, knob, windows: DynamoLoad(_bound(load), load.objectives, knob, windows),
    ),
    "llm-d": Contestant(
        "up",
        0.55,
        (0.25, 0.35, 0.45, 0.55, 0.7),
        lambda load, knob, windows: LlmD(_bound(load), knob, windows),
        watch,
    ),
}


def build_ours(workload: Workload) -> Scaler:
    """Return our autoscaler as shipped; it finds its windows itself."""
    return Ours(Policy(workload.min_replicas, workload.max_replicas, workload.objectives))
