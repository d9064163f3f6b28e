"""The learned model outlives the operator: whole sequences on simulated replicas, and damaged priors."""

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.decide.decision import Decision, Reason
from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.decide.policy import Objective, Policy
from millrace_operator.autoscaler.decide.prior import (
    LONGEST_TEXT,
    PriorError,
    has_moved,
    note_present,
    parse_prior,
    read_prior,
    render_prior,
)
from millrace_operator.autoscaler.signals.lengths import AnswerLengths
from millrace_operator.autoscaler.signals.observation import Signals, StepMoments
from millrace_operator.autoscaler.signals.savings import Drafts, PrefixHits
from millrace_operator.autoscaler.simulate import engine
from millrace_operator.autoscaler.simulate.hardware import Hardware
from millrace_operator.autoscaler.simulate.load import draw_requests, fixed_lengths
from millrace_operator.autoscaler.simulate.prometheus import Scraping
from millrace_operator.autoscaler.simulate.run import Choice, Ours, Setting, simulate
from millrace_runtime.contract import ANSWER_BUCKETS

OBJECTIVE = Objective("TimeToFirstToken", 95, 1.0)
POLICY = Policy(1, 8, (OBJECTIVE,), scale_down_window_seconds=30, scale_down_interval_seconds=4)
SLOW = Hardware(
    overhead_seconds=0.02,
    weights_seconds=0.0,
    token_seconds=0.002,
    context_seconds=2e-6,
    max_sequences=16,
    max_batched_tokens=256,
    kv_tokens=4096,
    cold_start_seconds=6.0,
)
GPU = "nvidia.com/gpu=1"
RATE = 10.0
"""Somewhat more than one replica carries."""


class Recorder(Ours):
    """Ours, with every decision kept, and the pods that it finds noted as `note_present` has them."""

    def __init__(self, memory: Memory | None = None) -> None:
        super().__init__(POLICY)
        self.memory = memory or Memory()
        self.decisions: list[Decision] = []

    def choose(self, signals: Signals, now: float) -> Choice:
        if not self.decisions:
            self.memory = note_present(self.memory, signals.fleet.ready, now)
        choice = super().choose(signals, now)
        assert self.decision is not None
        self.decisions.append(self.decision)
        return choice

    def reasons(self, number: int) -> list[Reason]:
        return [decision.reason for decision in self.decisions[:number]]


def live(memory: Memory | None = None, rate: float = RATE, seconds: float = 240.0) -> Recorder:
    scaler = Recorder(memory)
    load = draw_requests(lambda _: rate, 2 * RATE, seconds, fixed_lengths(40, 40), 1)
    simulate(Setting(SLOW, POLICY.objectives, Scraping(5.0), seed=1), scaler, load, seconds)
    return scaler


@pytest.fixture(scope="module")
def learned() -> Memory:
    memory = live().memory
    assert memory.model.is_fitted
    assert memory.cold_starts
    return memory


def carry(memory: Memory, revision: str | None = "revision-0", accelerator: str | None = GPU) -> Memory:
    """The memory with which a new leader begins."""
    text = json.dumps(render_prior(memory, GPU))
    found = read_prior(parse_prior(text), revision, accelerator)
    assert found is not None
    return found


def test_a_new_leader_plans_with_the_model_from_its_first_decision_on(
    learned: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of replicas that tried no steps before their first request."""
    monkeypatch.setattr(engine, "try_steps", lambda *_, **__: ())
    fresh, restored = live(seconds=60.0), live(carry(learned), seconds=60.0)
    assert Reason.LEARNING in fresh.reasons(10)
    assert Reason.LEARNING not in restored.reasons(10_000)
    informed = [decision for decision in restored.decisions if decision.estimate.rate]
    assert all("forecast" in decision.candidates for decision in informed)
    assert informed[0].estimate.capacity is not None


def test_a_night_without_load_does_not_forget_the_day(learned: Memory) -> None:
    restored = live(carry(learned), rate=0.0, seconds=120.0)
    assert {Reason.LEARNING} & set(restored.reasons(10_000)) == set()
    assert restored.memory.model == carry(learned).model


def test_a_restart_holds_the_count_for_the_whole_window(learned: Memory) -> None:
    restored = carry(learned)
    of_the_moment = {
        "recommendations": (),
        "informed_since": None,
        "lowered_at": None,
        "settled_since": None,
        "ready_since": {},
        "learned": {},
        "waiting": None,
    }
    assert {name: getattr(restored, name) for name in of_the_moment} == of_the_moment
    assert restored.outlook.error.pending == restored.outlook.points == ()
    assert restored.outlook.load is None


def test_what_outlives_the_operator_is_whole(learned: Memory) -> None:
    restored, fields = (
        carry(learned),
        (
            "model",
            "revision",
            "prompt_tokens",
            "generation_tokens",
            "context_tokens",
            "prefix_hits",
            "drafts",
            "max_sequences",
            "kv_tokens",
            "cold_starts",
            "correction",
        ),
    )
    assert {name: getattr(restored, name) for name in fields} == {
        name: getattr(learned, name) for name in fields
    }
    assert restored.outlook.error.quantile == learned.outlook.error.quantile
    assert None not in (restored.revision, restored.prompt_tokens, restored.max_sequences)


def test_a_new_leader_counts_on_the_hits_and_drafts_of_before(learned: Memory) -> None:
    """Otherwise every restart of the operator would add replicas for prompts that are cached."""
    spared = replace(learned, prefix_hits=PrefixHits(0.75, 200.0), drafts=Drafts(4.0, 16.0, 8.5))
    restored = carry(spared)
    assert (restored.prefix_hits, restored.drafts) == (spared.prefix_hits, spared.drafts)
    assert has_moved(learned, spared)
    earlier = render_prior(spared, GPU)
    del earlier["prefixHits"], earlier["drafts"]
    found = read_prior(earlier, None, None)
    assert found is not None
    assert (found.prefix_hits, found.drafts) == (None, None)


LENGTHS = AnswerLengths(tuple(min(bound / 500, 1.0) for bound in ANSWER_BUCKETS), 1234.5)


def test_the_lengths_of_answers_outlive_the_operator_where_they_are_known(learned: Memory) -> None:
    assert learned.answer_lengths is None  # no objective rests on them
    assert carry(learned).answer_lengths is None
    assert carry(replace(learned, answer_lengths=LENGTHS)).answer_lengths == LENGTHS
    assert has_moved(learned, replace(learned, answer_lengths=LENGTHS))


def test_how_bursty_a_service_is_outlives_the_operator(learned: Memory) -> None:
    bursty = replace(learned, outlook=replace(learned.outlook, dispersion=20.0))
    assert carry(bursty).outlook.dispersion == 20.0
    assert has_moved(learned, bursty)
    older = render_prior(bursty, GPU)
    del older["dispersion"]
    restored = read_prior(older, "revision-0", GPU)
    assert restored is not None
    assert restored.outlook.dispersion == 1.0
    assert restored.model == carry(learned).model


def test_which_load_is_a_night_outlives_the_operator(learned: Memory) -> None:
    busy = replace(learned, outlook=replace(learned.outlook, busy_load=40.0))
    assert carry(busy).outlook.busy_load == 40.0


def test_a_prior_of_before_lengths_were_kept_or_of_other_bounds_is_read(learned: Memory) -> None:
    prior = render_prior(replace(learned, answer_lengths=LENGTHS), GPU)
    prior["answerLengths"]["shares"].pop()
    other = read_prior(prior, "revision-0", GPU)
    del prior["answerLengths"]
    older = read_prior(prior, "revision-0", GPU)
    assert other == older
    assert older is not None
    assert older.answer_lengths is None


def test_after_a_rollout_in_between_the_model_is_doubted(learned: Memory) -> None:
    """As when the rollout had been seen: a few samples of the new replicas replace it."""
    other = carry(learned, revision="revision-1")
    assert other.revision == "revision-1"
    assert other.model == replace(learned.model.distrust(), coefficients=other.model.coefficients)
    assert other.model.coefficients == pytest.approx(learned.model.coefficients)
    slower = StepMoments("pod", 3 * learned.model.predict(8, 400), 8, 8, 400, 50)
    doubted, trusted = other.model, learned.model
    for _ in range(5):
        doubted, trusted = doubted.learn(slower), trusted.learn(slower)
    assert doubted.predict(8, 400) > 2 * trusted.predict(8, 400) / 1.5


def test_on_another_accelerator_nothing_of_it_counts(learned: Memory) -> None:
    prior = render_prior(learned, GPU)
    assert read_prior(prior, "revision-0", "nvidia.com/gpu=2") is None
    assert carry(learned, revision=None, accelerator=None) == carry(learned)


def test_pods_that_are_there_are_no_new_cold_starts(learned: Memory) -> None:
    present = note_present(carry(learned), {"pod-0", "pod-1"}, 70.0)
    assert present.ready_since == {"pod-0": 70.0, "pod-1": 70.0}
    assert note_present(Memory(), {"pod-0"}, 70.0) == Memory()


def spoil(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda prior: prior.update(values)


def spoil_model(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda prior: prior["model"].update(values)


NOT_DEFINITE = [[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
NEGATIVE_TOGETHER = [[1.0, -0.9, -0.9], [-0.9, 1.0, -0.9], [-0.9, -0.9, 1.0]]
SPOILS = {
    "newer version": (spoil(version=2), "its version is 2, and this operator reads 1"),
    "no version": (spoil(version=None), "its version is None"),
    "no model": (spoil(model=None), "it has no model"),
    "a negative sum": (spoil_model(gram=NEGATIVE_TOGETHER), "semi-definite"),
    "too large products": (spoil_model(gram=NOT_DEFINITE), "semi-definite"),
    "negative weights": (spoil_model(gram=[[-1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]]), "semi-definite"),
    "not symmetric": (spoil_model(gram=[[1.0, 0.5, 0], [0, 1.0, 0], [0, 0, 1.0]]), "semi-definite"),
    "products of nothing": (spoil_model(gram=[[0, 1.0, 0], [1.0, 1.0, 0], [0, 0, 1.0]]), "semi-definite"),
    "two rows": (spoil_model(gram=[[1.0, 0, 0], [0, 1.0, 0]]), "semi-definite"),
    "short rows": (spoil_model(gram=[[1.0], [0.0], [0.0]]), "three finite numbers"),
    "no number": (spoil_model(moment=[math.nan, 0.0, 0.0]), "three finite numbers"),
    "infinite": (spoil_model(moment=[math.inf, 0.0, 0.0]), "three finite numbers"),
    "huge": (spoil_model(moment=[10**400, 0.0, 0.0]), "three finite numbers"),
    "text": (spoil_model(moment=["1", 0.0, 0.0]), "three finite numbers"),
    "a step of years": (spoil_model(moment=[1e12, 0.0, 0.0]), "a step takes"),
    "negative samples": (spoil_model(samples=-1), "its samples is no number"),
    "more tried than known": (spoil_model(tried=1e9), "its tried is no number"),
    "negative error": (spoil_model(relativeError=-0.1), "its relativeError is no number"),
    "negative tokens": (spoil(promptTokens=-1), "its promptTokens is no number"),
    "true": (spoil(kvTokens=True), "its kvTokens is no number"),
    "no forecast error": (spoil(forecastError=None), "its forecastError is no number"),
    "no dispersion": (spoil(dispersion=None), "its dispersion is no number"),
    "large correction": (spoil(correction=1e9), "its correction is no number from 1 to 3"),
    "many cold starts": (spoil(coldStartSeconds=[1.0] * 21), "no list of at most 20"),
    "a week's cold start": (spoil(coldStartSeconds=[6e5]), "not all between 0 and an hour"),
    "no tokens": (spoil(generationTokens=5e-324), "its generationTokens is no number from 0.001"),
    "lengths as text": (spoil(answerLengths="long"), "its answerLengths are no object"),
    "shares that fall": (spoil(answerLengths={"shares": [0.5, 0.4], "answers": 9.0}), "from 0 to 1"),
    "shares beyond 1": (spoil(answerLengths={"shares": [0.5, 1.4], "answers": 9.0}), "from 0 to 1"),
    "text among shares": (spoil(answerLengths={"shares": [0.5, "1"], "answers": 9.0}), "from 0 to 1"),
    "no answers": (spoil(answerLengths={"shares": [0.5]}), "its answers is no number"),
    "many shares": (spoil(answerLengths={"shares": [0.5] * 201, "answers": 9.0}), "no list of at most 200"),
    "hits as text": (spoil(prefixHits="many"), "its prefixHits is no object"),
    "more hits than prompts": (spoil(prefixHits={"share": 1.1, "requests": 9}), "its share is no number"),
    "no batch": (spoil(drafts={"sequences": 0, "drafted": 1, "accepted": 1}), "its sequences is no number"),
    "negative drafts": (spoil(drafts={"sequences": 1, "drafted": -1, "accepted": 1}), "its drafted"),
    "revision": (spoil(revision=7), "its revision is no text"),
}


@pytest.mark.parametrize("name", SPOILS)
def test_what_is_damaged_or_absurd_is_refused(learned: Memory, name: str) -> None:
    change, message = SPOILS[name]
    prior = render_prior(learned, GPU)
    change(prior)
    with pytest.raises(PriorError, match=message):
        read_prior(parse_prior(json.dumps(prior)), "revision-0", GPU)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", "[" * 10_000, '{"version": 1}', " " * 20_000])
def test_what_is_no_prior_is_refused(text: str) -> None:
    with pytest.raises(PriorError):
        read_prior(parse_prior(text), None, None)


def test_every_model_that_is_learned_can_be_read_again() -> None:
    """Rounding makes a gram of nearly one direction look a little indefinite."""
    rng, model = random.Random(5), LatencyModel()
    for number in range(3000):
        batch = 1.0 if number % 500 < 400 else rng.uniform(1, 256)
        seconds = (0.01 + 1e-4 * batch + 1e-8 * batch * 3000) * rng.uniform(0.99, 1.01)
        model = model.learn(StepMoments("pod", seconds, batch, batch, 3000 * batch, 50), weight=0.3)
        if number % 50 == 0:
            assert carry(Memory(model=model), revision=None).model == model


def test_it_is_short(learned: Memory) -> None:
    lengths = AnswerLengths((0.123456789,) * len(ANSWER_BUCKETS), 1234.56789)
    longest = replace(
        learned, cold_starts=(1.2345678901234567,) * 20, revision="f" * 64, answer_lengths=lengths
    )
    assert len(json.dumps(render_prior(longest, "x" * 512))) < LONGEST_TEXT / 4


def test_only_what_moves_by_a_tenth_is_news(learned: Memory) -> None:
    assert learned.prompt_tokens is not None
    assert not has_moved(carry(learned), learned)
    assert not has_moved(learned, replace(learned, prompt_tokens=1.05 * learned.prompt_tokens))
    assert has_moved(learned, replace(learned, prompt_tokens=1.2 * learned.prompt_tokens))
    assert has_moved(learned, replace(learned, revision="revision-1"))
    assert has_moved(learned, replace(learned, kv_tokens=None))
    assert has_moved(learned, replace(learned, model=LatencyModel()))
    assert has_moved(None, learned)
