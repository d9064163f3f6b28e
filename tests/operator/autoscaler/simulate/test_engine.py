"""A simulated replica: its closed forms give what one step after the other gives."""

import math
import random
from collections import deque
from dataclasses import dataclass, replace

import pytest

from millrace_operator.autoscaler.simulate.agenda import Agenda
from millrace_operator.autoscaler.simulate.batch import Counters
from millrace_operator.autoscaler.simulate.engine import Answer, Engine
from millrace_operator.autoscaler.simulate.hardware import Hardware
from millrace_operator.autoscaler.simulate.load import CONVERSATION, Request, draw_requests

EXACT = Hardware(noise=0.0, unevenness=0.0, stalls_per_hour=0.0)
SMALL = replace(EXACT, max_sequences=4, max_batched_tokens=512, kv_tokens=40_000)


def run(hardware: Hardware, requests: list[Request]) -> tuple[list[Answer], Engine]:
    answers: list[Answer] = []
    agenda = Agenda()
    engine = Engine(agenda, hardware, random.Random(1), answers.append)
    for request in requests:
        agenda.add(request.at, lambda request=request: engine.submit(request))  # type: ignore[misc]
    agenda.run_until(100_000)
    return answers, engine


def draw(rate: float, seconds: float, seed: int = 3) -> list[Request]:
    return [*draw_requests(lambda _: rate, rate, seconds, CONVERSATION, seed)]


def test_a_request_alone_takes_a_step_for_its_prompt_and_one_for_each_token() -> None:
    [answer], _ = run(EXACT, [Request(5.0, 1000, 3)])
    first = EXACT.step_seconds(1000, 0)
    assert answer.time_to_first_token == pytest.approx(first)
    others = [EXACT.step_seconds(1, 1000), EXACT.step_seconds(1, 1001)]
    assert answer.time_per_output_token == pytest.approx(sum(others) / 2)


def test_an_answer_of_one_token_has_no_time_per_output_token() -> None:
    [answer], _ = run(EXACT, [Request(0.0, 10, 1)])
    assert answer.time_per_output_token is None


@dataclass
class Row:
    request: Request
    uncomputed: int
    context: int = 0
    generated: int = 0
    first_at: float = 0.0
    begun_at: float = 0.0


def step_by_step(hardware: Hardware, requests: list[Request]) -> dict[Request, Answer]:
    """Serve without preemption, every step by itself."""
    coming, waiting, batch, answers, now = deque(requests), deque[Row](), list[Row](), {}, 0.0
    while coming or waiting or batch:
        if not waiting and not batch:
            now = max(now, coming[0].at)
        while coming and coming[0].at <= now:
            waiting.append(Row(coming[0], coming.popleft().prompt_tokens))
        decoding = [row for row in batch if not row.uncomputed]
        prefilling = [row for row in batch if row.uncomputed]
        budget, chunks = hardware.max_batched_tokens - len(decoding), []
        for row in prefilling:
            chunks.append((row, min(row.uncomputed, budget)))
            budget -= chunks[-1][1]
        while budget > 0 and waiting and len(batch) < hardware.max_sequences:
            batch.append(row := waiting.popleft())
            row.begun_at = now
            chunks.append((row, min(row.uncomputed, budget)))
            budget -= chunks[-1][1]
        now += hardware.step_seconds(
            len(decoding) + sum(size for _, size in chunks), sum(row.context for row in batch)
        )
        for row in decoding:
            row.context, row.generated = row.context + 1, row.generated + 1
        for row, size in chunks:
            row.context, row.uncomputed = row.context + size, row.uncomputed - size
            if not row.uncomputed:
                row.first_at, row.generated = now, 1
        for row in [row for row in batch if row.generated == row.request.generation_tokens]:
            batch.remove(row)
            count = row.generated - 1
            pace = (now - row.first_at) / count if count else None
            at = row.request.at
            answers[row.request] = Answer(row.request, row.first_at - at, pace, row.begun_at - at, now - at)
    return answers


@pytest.mark.parametrize("hardware", [replace(EXACT, kv_tokens=10**7), replace(SMALL, kv_tokens=10**7)])
@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_closed_forms_give_what_single_steps_give(hardware: Hardware, rate: float) -> None:
    requests = draw(rate, 120)
    answers, _ = run(hardware, requests)
    expected = step_by_step(hardware, requests)
    assert len(answers) == len(requests)
    for answer in answers:
        one = expected[answer.request]
        assert answer.time_to_first_token == pytest.approx(one.time_to_first_token, rel=1e-6)
        assert answer.time_per_output_token == pytest.approx(one.time_per_output_token, rel=1e-6)
        assert answer.queue_time == pytest.approx(one.queue_time, rel=1e-6, abs=1e-9)
        assert answer.end_to_end_latency == pytest.approx(one.end_to_end_latency, rel=1e-6)


def test_a_full_kv_cache_puts_the_newest_back_and_loses_nobody() -> None:
    hardware = replace(EXACT, kv_tokens=3000)
    requests = [Request(0.1 * number, 700, 600) for number in range(12)]
    answers, engine = run(hardware, requests)
    assert sorted(answer.request for answer in answers) == requests
    assert engine.num_in_flight == 0
    sample = engine.sample()
    assert (sample.running, sample.waiting, sample.kv_usage) == (0, 0, 0.0)
    assert engine.counters.step_tokens > 12 * 1300  # what was put back is computed anew
    assert sum(engine.counters.queue_times) == 12  # and waits in the queue once


def test_a_request_that_can_never_fit_is_refused() -> None:
    engine = Engine(Agenda(), replace(EXACT, kv_tokens=100), random.Random(1), lambda _: None)
    with pytest.raises(ValueError, match="does not fit in a KV cache of 100 tokens"):
        engine.submit(Request(0.0, 90, 20))


def test_no_more_sequences_run_than_there_are_slots() -> None:
    agenda = Agenda()
    engine = Engine(agenda, SMALL, random.Random(1), lambda _: None)
    for _ in range(10):
        engine.submit(Request(0.0, 100, 500))
    for at in range(1, 60):
        agenda.run_until(at / 2)
        assert engine.sample().running <= 4
        assert engine.sample().running + engine.sample().waiting == engine.num_in_flight


def test_counters_are_what_was_computed() -> None:
    requests = draw(1.0, 60)
    answers, engine = run(EXACT, requests)
    counters = engine.counters
    assert counters.received == counters.finished == len(answers) == sum(counters.first_tokens)
    assert len(answers) == sum(counters.queue_times) == sum(counters.whole_requests)
    assert len(answers) == sum(counters.answer_lengths)
    assert counters.prompt_tokens == sum(request.prompt_tokens for request in requests)
    # The last prompt token's step gives the first token of the answer.
    generated = sum(request.generation_tokens - 1 for request in requests)
    assert counters.step_tokens == counters.prompt_tokens + generated


def test_cached_tokens_are_not_computed_and_a_cache_fills() -> None:
    requests = draw(1.0, 600)
    _, engine = run(replace(EXACT, prefix_hits=0.8), requests)
    counters = engine.counters
    generated = sum(request.generation_tokens - 1 for request in requests)
    assert counters.step_tokens == counters.prompt_tokens + generated - counters.step_found
    assert counters.step_looked_up == counters.prompt_tokens
    assert 0.5 < counters.step_found / counters.step_looked_up < 0.8
    _, new = run(replace(EXACT, prefix_hits=0.8), requests[:20])
    assert new.counters.step_found / new.counters.step_looked_up < 0.3


def test_guesses_that_come_true_save_steps() -> None:
    drafting = replace(EXACT, draft_tokens=4, draft_acceptance=0.5)
    [answer], engine = run(drafting, [Request(0.0, 1000, 1001)])
    written = 1 + 0.5 + 0.25 + 0.125 + 0.0625
    steps = [EXACT.step_seconds(5, 1000 + number) for number in range(1000)]
    assert answer.time_per_output_token == pytest.approx(sum(steps) / 1000 / written)
    counters = engine.counters
    assert counters.steps == pytest.approx(1 + 1000 / written)
    assert counters.step_drafted == pytest.approx(4 * 1000 / written)
    assert counters.step_accepted == pytest.approx(1000 - 1000 / written)
    assert drafting.draft(256).drafted == 0.25


def test_a_scrape_sees_every_step_that_has_ended() -> None:
    """Not only when the batch changes: an answer of two minutes is seen to be written."""
    agenda = Agenda()
    engine = Engine(agenda, EXACT, random.Random(1), lambda _: None)
    engine.submit(Request(0.0, 1000, 5000))
    first, names = EXACT.step_seconds(1000, 0), Counters.NAMES
    for count in (0, 1, 10, 3000):
        decoding = sum(EXACT.step_seconds(1, 1000 + number) for number in range(count))
        agenda.run_until(first + decoding + 0.01)
        sample = engine.sample()
        seen = dict(zip(names, sample.counters, strict=True))
        assert seen["steps"] == 1 + count
        assert seen["step_seconds"] == pytest.approx(first + decoding)
        assert seen["step_tokens"] == 1000 + count
        assert seen["step_context"] == sum(range(1000, 1000 + count))
        assert sample.kv_usage == pytest.approx((1000 + count) / EXACT.kv_tokens)


def test_stalls_take_the_part_of_a_busy_replica_that_they_say() -> None:
    requests = [Request(0.0, 10, 100_000)]
    _, quiet = run(EXACT, requests)
    _, stalled = run(replace(EXACT, stalls_per_hour=360.0, stall_seconds=0.5), requests)
    assert stalled.counters.step_seconds == pytest.approx(1.05 * quiet.counters.step_seconds, rel=0.01)


def test_a_new_replica_is_slow_at_first_and_then_like_any_other() -> None:
    """The excess falls evenly with what has been computed, and is gone after 15 s of that."""
    agenda, answers = Agenda(), list[Answer]()
    engine = Engine(agenda, EXACT, random.Random(1), answers.append, is_warm=False)
    slowness = []
    for number in range(600):
        computed = engine.counters.step_seconds
        engine.submit(Request(agenda.now, 10, 2))
        agenda.run_until(number + 1.0)
        slowness.append((computed, answers[-1].time_to_first_token / EXACT.step_seconds(10, 0)))
    assert slowness[0][0] == 0.0
    for computed, times in slowness:
        assert times == pytest.approx(max(2.0 - computed / 15.0, 1.0), abs=0.01)
    assert slowness[-1][0] > 20


def test_a_long_answer_of_a_new_replica_gets_faster_while_it_is_written() -> None:
    def time_answer(tokens: int) -> float:
        agenda, answers = Agenda(), list[Answer]()
        engine = Engine(agenda, EXACT, random.Random(1), answers.append, is_warm=False)
        engine.submit(Request(0.0, 10, tokens))
        agenda.run_until(1000)
        return (answers[0].time_per_output_token or 0) / EXACT.step_seconds(1, tokens / 2)

    assert time_answer(50) == pytest.approx(1.95, abs=0.03)
    # Of t seconds at a slowness that falls by t/15, ln 2 · 15 s of work are done in the first 15 s.
    work = 5000 * EXACT.step_seconds(1, 2500)
    assert time_answer(5000) == pytest.approx((work + 15 - 15 * math.log(2)) / work, abs=0.005)


def test_a_replica_that_is_idle_stays_cold() -> None:
    agenda, answers = Agenda(), list[Answer]()
    engine = Engine(agenda, EXACT, random.Random(1), answers.append, is_warm=False)
    agenda.run_until(100)
    engine.submit(Request(100.0, 1000, 1))
    agenda.run_until(110)
    assert answers[0].time_to_first_token == pytest.approx(2 * EXACT.step_seconds(1000, 0))


@pytest.mark.parametrize("wrong", [{"warm_up_factor": 0.5}, {"pods_per_node": 0}])
def test_hardware_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"write 1 .*or more"):
        Hardware(**wrong)  # type: ignore[arg-type]


def test_a_replica_that_ends_loses_what_it_had_and_answers_nobody_any_more() -> None:
    agenda, answers = Agenda(), list[Answer]()
    engine = Engine(agenda, SMALL, random.Random(1), answers.append)
    for _ in range(10):
        engine.submit(Request(0.0, 100, 500))
    agenda.run_until(5)
    assert engine.stop() == 10
    agenda.run_until(100)
    assert answers == []
    assert engine.num_in_flight == 0


def test_noise_leaves_the_mean_and_no_two_replicas_are_alike() -> None:
    requests = draw(0.3, 2000)
    _, quiet = run(EXACT, requests)
    _, noisy = run(replace(EXACT, noise=0.1), requests)
    assert noisy.counters.step_seconds == pytest.approx(quiet.counters.step_seconds, rel=0.02)
    _, uneven = run(replace(EXACT, unevenness=0.1), requests)
    assert uneven.counters.step_seconds != pytest.approx(quiet.counters.step_seconds, rel=0.01)
