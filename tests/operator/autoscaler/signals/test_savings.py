"""The work that replicas were spared, and the part of it with which a plan may count."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from millrace_operator.autoscaler.signals.observation import StepMoments
from millrace_operator.autoscaler.signals.savings import (
    NO_DRAFTS,
    REQUESTS_AVERAGED,
    Drafts,
    PrefixHits,
    read_drafts,
    read_hits,
)

STEPS = StepMoments("a", 0.05, 4.0, 44.0, 4000.0, 100, looked_up=200.0, found=160.0)
"""A hundred steps of four sequences, each with 40 tokens of prompts, of which the cache had four fifths."""


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.8, 0.99, 1.0])
def test_the_certain_share_comes_near_the_measured_one_as_requests_come(share: float) -> None:
    certain = [PrefixHits(share, number).certain_share for number in (0, 1, 10, 100, 1000, 1e5)]
    assert certain == sorted(certain)
    assert certain[0] == 0.0
    assert certain[-1] <= share == pytest.approx(certain[-1], abs=0.01)


def draw(share: float, requests: int, rng: random.Random) -> PrefixHits:
    """A window of requests that are cached whole or not at all."""
    return PrefixHits(sum(rng.random() < share for _ in range(requests)) / requests, requests)


def test_chance_forgets_no_hits_and_their_loss_counts_at_once() -> None:
    rng, known = random.Random(1), PrefixHits(0.8, REQUESTS_AVERAGED)
    for _ in range(500):
        known = known.add(draw(0.8, 100, rng), 10.0)
    assert known.share == pytest.approx(0.8, abs=0.1)
    lost = draw(0.1, 100, rng)
    assert known.add(lost, 10.0) == lost


def test_hits_that_come_count_slowly() -> None:
    known = [PrefixHits(0.0, REQUESTS_AVERAGED)]
    for _ in range(100):
        known.append(known[-1].add(PrefixHits(0.8, 100.0), 10.0))
    assert all(one.share < other.share for one, other in pairwise(known))
    assert known[5].share < 0.2
    assert known[-1].share > 0.75


def test_hits_are_read_of_all_replicas_together() -> None:
    other = replace(STEPS, pod="b", num_steps=300, found=0.0, looked_up=200.0)
    assert read_hits([STEPS, other], 100.0) == PrefixHits(160 / 800, 800.0)
    assert read_hits([], 100.0) is None
    assert read_hits([STEPS], None) is None


def test_a_replica_that_counts_no_hits_has_computed_its_prompts() -> None:
    """One of an earlier version, or without a cache."""
    assert read_hits([replace(STEPS, looked_up=0.0, found=0.0)], 40.0) == PrefixHits(0.0, 100.0)


def test_without_speculation_a_step_yields_and_computes_one_token_exactly() -> None:
    read = read_drafts([STEPS])
    assert read == Drafts(4.0)
    for drafts in (NO_DRAFTS, read):
        assert {drafts.written_per_step(n) for n in (1.0, 4.0, 64.0)} == {1.0}
        assert {drafts.computed_per_step(n) for n in (1.0, 4.0, 64.0)} == {1.0}


def test_a_batch_that_was_not_seen_has_no_more_guesses_than_the_seen_one() -> None:
    drafts = Drafts(sequences=4.0, drafted=16.0, accepted=8.0)
    assert [drafts.written_per_step(batch) for batch in (1.0, 4.0, 8.0, 80.0)] == [3.0, 3.0, 2.0, 1.1]
    assert drafts.computed_per_step(8.0) == 3.0


def test_drafts_of_several_replicas_weigh_by_their_steps() -> None:
    one, other = replace(STEPS, drafted=8.0, accepted=4.0), replace(STEPS, sequences=8.0, num_steps=300)
    assert read_drafts([one, other]) == Drafts(7.0, 2.0, 1.0)
    assert read_drafts([replace(STEPS, num_steps=0.0)]) is None


def test_guesses_that_fail_count_at_once_and_others_slowly() -> None:
    known = Drafts(4.0, 16.0, 8.0)
    assert known.add(Drafts(4.0, 16.0, 3.0), 0.1) == Drafts(4.0, 16.0, 3.0)
    assert known.add(Drafts(4.0, 0.0, 0.0), 0.1) == Drafts(4.0)
    assert known.add(Drafts(4.0, 16.0, 12.0), 0.25) == Drafts(4.0, 16.0, 9.0)
