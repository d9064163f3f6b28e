"""Half hours of replicas with a prefix cache, or with drafts: fewer of them keep the same objectives."""

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import mean

import pytest

from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.decide.memory_update import remember
from millrace_operator.autoscaler.decide.policy import Objective, Policy
from millrace_operator.autoscaler.signals.observation import Fleet, Signals
from millrace_operator.autoscaler.signals.savings import Drafts, PrefixHits
from millrace_operator.autoscaler.simulate import workloads
from millrace_operator.autoscaler.simulate.load import Lengths, draw_requests
from millrace_operator.autoscaler.simulate.run import Ours, Run, Setting, is_within, simulate
from tests.operator.autoscaler.sources import READS_AUTOSCALER

pytestmark = READS_AUTOSCALER

SECONDS = 1800.0
HALF = SECONDS / 2
RATE = 2.0
OBJECTIVES = (Objective("TimeToFirstToken", 95, 3.0), Objective("TimePerOutputToken", 95, 0.1))
LONG_PROMPTS = Lengths(math.log(3000), 0.6, math.log(100), 0.6, 12_000)
LONG_ANSWERS = Lengths(math.log(300), 0.6, math.log(400), 0.6, 12_000)
CACHING = replace(workloads.DAY_HARDWARE, prefix_hits=0.8)
DRAFTING = replace(workloads.DAY_HARDWARE, draft_tokens=4, draft_acceptance=0.6)


def steady(_: float) -> float:
    return RATE


def live(
    lengths: Lengths, setting: Setting, rate_at: Callable[[float], float] = steady, seed: int = 1
) -> Run:
    load = draw_requests(rate_at, 2 * RATE, SECONDS, lengths, seed)
    return simulate(setting, Ours(Policy(1, 40, setting.objectives)), load, SECONDS)


def count(run: Run, begin: float, end: float = SECONDS) -> float:
    """Return the mean count between two times."""
    return mean(moment.choice.replicas for moment in run.moments if begin <= moment.at < end)


def attain(
    run: Run, begin: float, end: float = SECONDS, objectives: tuple[Objective, ...] = OBJECTIVES
) -> float:
    """Return the part in time of the requests that came between two times."""
    came = [answer for answer in run.answers if begin <= answer.request.at < end]
    return mean(all(is_within(answer, each) for each in objectives) for answer in came)


@pytest.fixture(scope="module")
def plain() -> Run:
    return live(LONG_PROMPTS, Setting(workloads.DAY_HARDWARE, OBJECTIVES, initial_replicas=8))


def test_cached_prompts_take_fewer_replicas_and_the_objectives_are_kept(plain: Run) -> None:
    run = live(LONG_PROMPTS, Setting(CACHING, OBJECTIVES, initial_replicas=8))
    assert count(run, HALF) <= 0.6 * count(plain, HALF)
    assert min(attain(run, 0.0), attain(run, HALF)) >= 0.95


def test_when_prompts_are_no_longer_cached_the_replicas_come(plain: Run) -> None:
    setting = Setting(CACHING, OBJECTIVES, initial_replicas=8, prefixes_lost_at=HALF)
    run = live(LONG_PROMPTS, setting)
    recovered = HALF + 3 * CACHING.cold_start_seconds
    assert count(run, HALF - 60, HALF) <= 0.6 * count(plain, HALF)
    assert count(run, recovered) >= 0.9 * count(plain, HALF)
    assert attain(run, recovered) >= 0.95
    assert attain(run, HALF, recovered) >= 0.8


def test_empty_caches_of_added_replicas_ask_for_no_more_than_a_load_needs() -> None:
    """The load doubles in five minutes."""

    def rise(at: float) -> float:
        return RATE * (1 + min(max(at - HALF, 0.0) / 300, 1.0))

    run = live(LONG_PROMPTS, Setting(CACHING, OBJECTIVES, initial_replicas=8), rise)
    assert attain(run, HALF) >= 0.95
    last = count(run, SECONDS - 120)
    assert max(moment.choice.replicas for moment in run.moments if moment.at >= HALF) <= 1.5 * last


def test_tokens_that_are_guessed_take_fewer_replicas_and_their_pace_is_kept() -> None:
    objectives = (Objective("TimePerOutputToken", 95, 0.05),)
    counts = []
    for hardware in (workloads.DAY_HARDWARE, DRAFTING):
        run = live(LONG_ANSWERS, Setting(hardware, objectives, initial_replicas=8))
        assert attain(run, HALF, objectives=objectives) >= 0.95
        counts.append(count(run, HALF))
    assert counts[1] <= 0.6 * counts[0]


def test_what_caches_had_is_not_counted_on_once_they_are_gone() -> None:
    """After a rest at zero, and of another revision."""
    hits, drafts = PrefixHits(0.8, 200.0), Drafts(4.0, 16.0, 8.0)
    memory = Memory(revision="a", prefix_hits=hits, drafts=drafts)
    for fleet in (Fleet(), Fleet({"pod": "b"}, frozenset({"pod"}))):
        known = remember(memory, Signals(fleet), Policy(1, 40, OBJECTIVES), 0.0)
        assert known.prefix_hits == PrefixHits(0.8, 0.0)
        assert known.prefix_hits.certain_share == 0.0
        assert known.drafts == (drafts if not fleet.ready else None)
