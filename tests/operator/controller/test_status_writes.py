"""How often the status of a busy service is written under noisy load: real decisions, real plans."""

import copy
import random
from dataclasses import replace

import pytest

from millrace_operator.api.types import Spec
from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.decide.decide import decide
from millrace_operator.autoscaler.decide.evidence import gather_evidence
from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.run.advice import render_advice
from millrace_operator.autoscaler.run.service_policy import read_policy
from millrace_operator.autoscaler.run.settings import ScalingSettings
from millrace_operator.autoscaler.signals.observation import Fleet, Latency, Signals
from millrace_operator.kube.kinds import INFERENCE_SERVICE, Obj
from testing.world import BEGAN, World

TICK_SECONDS = 2.0
HOUR_SECONDS = 3600.0
SETTLED_SECONDS = 900.0
LENGTHS = pytest.mark.parametrize(
    "seconds", [HOUR_SECONDS / 3, pytest.param(HOUR_SECONDS, marks=pytest.mark.long)], ids=["part", "hour"]
)
MOST_WRITES = 60
"""In an hour."""
SERVICES = 750
WRITES_A_SECOND = 50.0
FITTED = LatencyModel(num_samples=500, relative_error=0.02, coefficients=(0.02, 0.002, 2e-6))
SCALING = {
    "mode": "Automatic",
    "minReplicas": 1,
    "maxReplicas": 20,
    "objectives": [{"metric": "TimeToFirstToken", "percentile": 95, "target": "2s"}],
}
COST = {"acceleratorHour": "2.50"}


class Noise:
    """Signals as a busy service shows them: everything moves in each tick."""

    def __init__(self, world: World, ttft: float) -> None:
        self._world = world
        self._random = random.Random(7)
        self._ttft = ttft
        self._arrived: list[int] = []
        self.policy = read_policy(
            Spec.model_validate(world.service["spec"]), ScalingSettings("http://unused")
        )

    def draw(self) -> Signals:
        chance = self._random
        names = frozenset(pod["metadata"]["name"] for pod in self._world.pods())
        desired = self._world.status.get("scaling", {}).get("desiredReplicas")
        self._arrived.append(sum(chance.random() < 0.06 for _ in range(1000)))  # 60 in a tick, by chance
        (objective,) = self.policy.objectives
        return Signals(
            Fleet(dict.fromkeys(names, "r1"), names, desired=desired),
            reporting=names,
            arrivals_per_second=self._rate(60),
            recent_arrivals_per_second=self._rate(20),
            waiting=float(chance.randrange(6)),
            running=float(chance.randrange(20, 90)),
            prompt_tokens=chance.uniform(35, 45),
            generation_tokens=chance.uniform(35, 45),
            kv_usage=chance.uniform(0.2, 0.4),
            latencies=(Latency(objective, self._ttft * chance.uniform(0.8, 1.2), 900.0),),
        )

    def _rate(self, window_seconds: int) -> float:
        recent = self._arrived[-int(window_seconds / TICK_SECONDS) :]
        return sum(recent) / len(recent) / TICK_SECONDS


def lose(signals: Signals) -> Signals:
    """Return what is left when Prometheus does not answer in time."""
    return Signals(signals.fleet, rejected={"every signal": "Prometheus did not answer within 2 s"})


async def count_writes(ttft: float, seconds: float, *, has_gaps: bool = False) -> int:
    """Return the writes of the status in a while, once the service has settled. Nothing else is written."""
    world = World(scaling=SCALING, resources={"limits": {"nvidia.com/gpu": 2}}, cost=COST)
    noise, memory = Noise(world, ttft), Memory(model=FITTED)
    asked = read_asked(world)
    settled = writes = 0
    while world.now < BEGAN + SETTLED_SECONDS + seconds:
        signals = noise.draw()
        if has_gaps and world.now % (2 * TICK_SECONDS):
            signals = lose(signals)
        decision, memory = decide(noise.policy, signals, replace(memory, model=FITTED), world.now)
        evidence = gather_evidence(noise.policy, decision, signals, memory, world.now)
        world.advice = render_advice(decision, signals, evidence)
        await world.reconcile()
        if world.run_controllers():
            await world.settle()
        writes = sum(verb == "status" for verb, _, _ in world.cluster.writes)
        settled = writes if world.now <= BEGAN + SETTLED_SECONDS else settled
        world.now += TICK_SECONDS
    assert read_asked(world) == asked
    assert {verb for verb, kind, _ in world.cluster.writes if kind == INFERENCE_SERVICE.kind} == {"status"}
    return writes - settled


def read_asked(world: World) -> Obj:
    """Return all of the service that is its owner's: what `kubectl diff` compares and more."""
    metadata = world.service["metadata"]
    about = {name: metadata.get(name) for name in ("generation", "labels", "annotations", "finalizers")}
    return copy.deepcopy({"spec": world.service["spec"], **about})


@pytest.mark.slow
@LENGTHS
@pytest.mark.parametrize("ttft", [0.5, 2.0, 3.0], ids=["met", "between", "missed"])
async def test_noise_stays_far_under_the_budget(ttft: float, seconds: float) -> None:
    writes_an_hour = await count_writes(ttft, seconds) * HOUR_SECONDS / seconds
    assert writes_an_hour <= MOST_WRITES
    assert SERVICES * writes_an_hour / HOUR_SECONDS <= WRITES_A_SECOND / 3


@pytest.mark.slow
@LENGTHS
@pytest.mark.parametrize(
    "ttft", [pytest.param(0.5, marks=pytest.mark.long, id="met"), pytest.param(2.0, id="between")]
)
async def test_noise_with_every_other_answer_missing_does_too(ttft: float, seconds: float) -> None:
    """That signals are lost is told at once, and that they are back a minute later."""
    assert await count_writes(ttft, seconds, has_gaps=True) <= 2 * MOST_WRITES * seconds / HOUR_SECONDS
