"""The load that a replica carries if prompts are cached, or answers are guessed."""

from dataclasses import replace
from itertools import pairwise

import pytest

from millrace_operator.autoscaler.capacity.capacity import find_capacity
from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.capacity.pool import Pool
from millrace_operator.autoscaler.capacity.replica import Replica
from millrace_operator.autoscaler.decide.policy import LatencyMetric, Objective
from millrace_operator.autoscaler.signals.savings import Drafts

PLAIN = Replica(LatencyModel(coefficients=(0.04, 2e-4, 3e-7)), 2000, 200, 2100, 64, 400_000)
METRICS: tuple[LatencyMetric, ...] = (
    "TimeToFirstToken",
    "TimePerOutputToken",
    "EndToEndLatency",
    "QueueTime",
)
EACH_METRIC = pytest.mark.parametrize("metric", METRICS)
PERCENTILES = (50, 90, 95, 99)
RATES = (0.0, 0.1, 0.5, 1.0, 1.2)
FOUR_AHEAD = Drafts(sequences=4.0, drafted=16.0, accepted=8.0)


def list_latencies(replica: Replica, metric: LatencyMetric) -> list[float]:
    pools = [Pool(replica, 3, 3 * rate) for rate in RATES]
    return [pool.find_latency(metric, percentile / 100) for pool in pools for percentile in PERCENTILES]


def carry(replica: Replica, metric: LatencyMetric, target: float) -> float:
    return find_capacity(replica, (Objective(metric, 95, target),), 3).rate


@EACH_METRIC
def test_without_hits_and_drafts_every_figure_is_the_same_to_the_bit(metric: LatencyMetric) -> None:
    """Once replicas count both, and both are zero."""
    counted = replace(PLAIN, cached_share=0.0, drafts=Drafts(sequences=7.3))
    assert list_latencies(counted, metric) == list_latencies(PLAIN, metric)
    assert (counted.lone_rate, counted.highest_rate) == (PLAIN.lone_rate, PLAIN.highest_rate)


@EACH_METRIC
def test_no_latency_grows_with_more_hits_and_no_replica_carries_less(metric: LatencyMetric) -> None:
    replicas = [replace(PLAIN, cached_share=share) for share in (0.0, 0.2, 0.5, 0.8, 1.0)]
    latencies = [list_latencies(replica, metric) for replica in replicas]
    for fewer, more in pairwise(latencies):
        assert all(one >= other - 1e-12 for one, other in zip(fewer, more, strict=True))
    carried = [carry(replica, metric, 3.0 * list_latencies(PLAIN, metric)[2]) for replica in replicas]
    assert carried == sorted(carried)


def test_hits_spare_prompts_and_neither_tokens_nor_memory() -> None:
    hits = replace(PLAIN, cached_share=0.75)
    decode = PLAIN.work_seconds - PLAIN.prefill_seconds
    assert hits.work_seconds == pytest.approx(PLAIN.prefill_seconds / 4 + decode)
    assert (hits.room, hits.decode_seconds(8)) == (PLAIN.room, PLAIN.decode_seconds(8))


def test_a_prompt_that_is_not_cached_still_takes_its_time() -> None:
    """Of five prompts one is computed: the longest of twenty are the longest fourth of those."""
    hits = replace(PLAIN, cached_share=0.8)
    assert hits.longest_prefill_seconds(0.95) == pytest.approx(PLAIN.longest_prefill_seconds(0.75))
    assert hits.longest_prefill_seconds(0.79) == pytest.approx(0.2 * PLAIN.longest_prefill_seconds(0.79))


def test_a_token_takes_its_part_of_a_step() -> None:
    drafting = replace(PLAIN, drafts=FOUR_AHEAD)
    step = PLAIN.model.predict(5.0, PLAIN.context_tokens)  # a token and four guesses
    pace = Pool(drafting, 1, 0.0).find_latency("TimePerOutputToken", 0.95)
    assert pace == pytest.approx(step / 3)
    assert pace < Pool(PLAIN, 1, 0.0).find_latency("TimePerOutputToken", 0.95) / 2.5


@pytest.mark.parametrize(("metric", "target"), [("TimePerOutputToken", 0.05), ("EndToEndLatency", 20.0)])
def test_drafts_carry_more_within_a_tokens_target(metric: LatencyMetric, target: float) -> None:
    assert carry(replace(PLAIN, drafts=FOUR_AHEAD), metric, target) > 1.2 * carry(PLAIN, metric, target)


def test_at_saturation_drafts_promise_nothing() -> None:
    drafting = replace(PLAIN, drafts=FOUR_AHEAD)
    assert drafting.work_seconds >= PLAIN.work_seconds
    failing = replace(PLAIN, drafts=Drafts(sequences=4.0, drafted=16.0, accepted=0.4))
    assert failing.work_seconds > 1.1 * (PLAIN.work_seconds - PLAIN.prefill_seconds) + PLAIN.prefill_seconds


def test_a_larger_batch_never_writes_a_token_sooner() -> None:
    drafting = replace(PLAIN, drafts=FOUR_AHEAD)
    paces = [Pool(drafting, 2, 2 * rate / 20).find_latency("TimePerOutputToken", 0.95) for rate in range(26)]
    assert paces == sorted(paces)
