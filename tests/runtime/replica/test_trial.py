"""What a replica tries before its first request, and what it tells of it."""

import msgspec
import pytest

from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.protocol.executor import Command, Record
from millrace_runtime.protocol.messages import StepTiming
from millrace_runtime.protocol.step import KvGroup, Limits, StepPlan, StepSize
from millrace_runtime.replica import trial
from millrace_runtime.replica.recordings import REST_SECONDS, Recordings
from millrace_runtime.replica.trial import (
    LEAST_BATCH_SECONDS,
    LONG_PROMPT,
    NUM_SEQUENCES,
    try_steps,
)
from tests.runtime.engine.engine_driver import SimulatedExecutor, next_token

LIMITS = Limits(
    groups=(KvGroup(num_blocks=4000),),
    block_size=16,
    num_slots=48,
    depth=1,
    max_model_length=4096,
    vocabulary_size=100,
    max_batched_tokens=1024,
)
NUM_BUILT = 8
"""Sizes of steps that are built in a trial, at most."""


EAGER_SECONDS = 0.003
"""A step that was not recorded takes longer by this, where steps can be recorded."""


class TimedExecutor(SimulatedExecutor):
    """Each step takes 1 ms and 2 µs a token, on a clock of its own; the first of each size a second more."""

    def __init__(
        self, limits: Limits = LIMITS, base_seconds: float = 0.001, token_seconds: float = 2e-6
    ) -> None:
        super().__init__(limits, next_token)
        self.now = 0.0
        self._base_seconds, self._token_seconds = base_seconds, token_seconds
        self._built: set[int] = set()

    def submit(self, plan: StepPlan) -> None:
        super().submit(plan)
        tokens = sum(row.num_tokens for row in plan.rows)
        self.now += self._base_seconds + self._token_seconds * tokens + (tokens not in self._built)
        self._built.add(tokens)
        kind = [size.num_tokens for size in self.recorded if size.is_mixed is (tokens > len(plan.rows))]
        if self.limits.recordable and tokens > max(kind, default=0):
            self.now += EAGER_SECONDS


def try_all(
    executor: TimedExecutor, scheduler: Scheduler | None = None, loading_seconds: float = 0.0
) -> list[StepTiming]:
    recordings = Recordings(executor.limits.recordable)
    return try_steps(scheduler or Scheduler(executor.limits), executor, recordings, loading_seconds)


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> TimedExecutor:
    executor = TimedExecutor()
    follow(executor, monkeypatch)
    return executor


def follow(executor: TimedExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = trial.StepClock
    monkeypatch.setattr(trial, "StepClock", lambda: clock(lambda: executor.now))


@pytest.mark.parametrize("target_seconds", [None, 1e-4])
def test_a_step_of_each_kind_is_measured_without_what_is_built_on_first_use(
    executor: TimedExecutor, target_seconds: float | None
) -> None:
    lone, prompt, batch = try_all(executor, Scheduler(LIMITS, target_seconds))
    assert (lone.num_tokens, prompt.num_tokens, batch.num_tokens) == (1, LONG_PROMPT, NUM_SEQUENCES)
    assert lone.seconds == pytest.approx(0.001 + 2e-6)
    assert prompt.seconds == pytest.approx(0.001 + 2e-6 * LONG_PROMPT)
    assert batch.seconds == pytest.approx(0.001 + 2e-6 * NUM_SEQUENCES)
    context = batch.num_context_tokens / NUM_SEQUENCES
    assert LONG_PROMPT < context < 1.2 * LONG_PROMPT
    assert lone.num_context_tokens < 16


def test_nothing_is_left_of_it(executor: TimedExecutor) -> None:
    scheduler = Scheduler(LIMITS)
    try_all(executor, scheduler)
    stats = scheduler.stats()
    assert not scheduler.has_work
    assert (stats.num_waiting, stats.num_running, stats.num_free_blocks) == (0, 0, stats.num_blocks)
    scheduler.check_integrity()


@pytest.mark.parametrize("base_seconds", [0.02, 0.06, 0.5, 30.0])
def test_a_slow_model_is_not_kept_from_its_requests(
    base_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = TimedExecutor(base_seconds=base_seconds)
    follow(executor, monkeypatch)
    found = try_all(executor)
    assert executor.now < NUM_BUILT + max(10.0, 6 * base_seconds)
    assert bool(found) == (base_seconds < 0.1)


@pytest.mark.parametrize(("loading_seconds", "number"), [(1.0, 1), (60.0, 12), (600.0, NUM_SEQUENCES)])
def test_a_large_model_tells_of_several_sequences_where_loading_took_long(
    loading_seconds: float, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """41 ms a step, as of 32 billion parameters on one device. A prompt takes 0.25 s."""
    executor = TimedExecutor(base_seconds=0.041, token_seconds=2e-4)
    follow(executor, monkeypatch)
    lone, prompt, batch = try_all(executor, loading_seconds=loading_seconds)
    assert (lone.num_tokens, prompt.num_tokens, batch.num_tokens) == (1, LONG_PROMPT, number)
    assert executor.now < 2 * NUM_BUILT + 4.0 + 0.2 * loading_seconds


@pytest.mark.parametrize(
    "change", [{"max_model_length": 4}, {"max_model_length": 60}, {"num_slots": 1}, {"vocabulary_size": 1}]
)
def test_small_limits_are_no_error(change: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(**{name: getattr(LIMITS, name) for name in LIMITS.__struct_fields__} | change)  # type: ignore[arg-type]
    executor = TimedExecutor(limits)
    follow(executor, monkeypatch)
    found = try_all(executor)
    assert len(found) == (0 if "max_model_length" in change else 3)


def test_long_prompts_that_are_slow_are_tried_by_fewer_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = TimedExecutor(token_seconds=1e-4)
    follow(executor, monkeypatch)
    _, prompt, batch = try_all(executor)
    assert 1 <= batch.num_tokens < NUM_SEQUENCES
    assert prompt.seconds * batch.num_tokens <= LEAST_BATCH_SECONDS


def test_a_trial_guesses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = msgspec.structs.replace(LIMITS, max_draft=4, max_draws=4 * LIMITS.num_slots)
    executor, plans = TimedExecutor(limits), []
    follow(executor, monkeypatch)
    executor._propose = lambda tokens: tokens[-4:]
    submit = executor.submit
    monkeypatch.setattr(executor, "submit", lambda plan: (plans.append(plan), submit(plan)))
    lone, *_ = try_all(executor)
    assert lone.num_tokens == 1
    assert not any(row.draft for plan in plans for row in plan.rows)


SIZES = tuple(map(StepSize, (1, 2, 4, 8, 16, 24, 32, 48)))
MIXED = tuple(StepSize(size, is_mixed=True) for size in (64, 128))
SHORT = msgspec.structs.replace(LIMITS, recordable=SIZES, max_model_length=512)
"""Prompts of 256 tokens."""


@pytest.mark.parametrize(
    ("recordable", "loading_seconds", "budget", "before"),
    [
        ((), 60.0, 512, []),
        ((*SIZES, *MIXED), 60.0, 512, [StepSize(8), StepSize(1), StepSize(32)]),
        ((*SIZES, *MIXED), 0.0, 512, [StepSize(8), StepSize(1), StepSize(16)]),
        ((*SIZES, *MIXED), 60.0, 128, [StepSize(8), StepSize(1), MIXED[1], StepSize(32)]),
        (SIZES[:3], 60.0, 512, [StepSize(1)]),
    ],
    ids=["a CPU", "many sequences", "fewer", "prompts in small chunks", "no size for them"],
)
def test_what_will_serve_is_recorded_before_it_is_timed(
    monkeypatch: pytest.MonkeyPatch,
    recordable: tuple[StepSize, ...],
    loading_seconds: float,
    budget: int,
    before: list[StepSize],
) -> None:
    bounds = msgspec.structs.replace(SHORT, recordable=tuple(sorted(recordable)), max_batched_tokens=budget)
    executor, recordings = TimedExecutor(bounds, token_seconds=5e-5), Recordings(bounds.recordable)
    follow(executor, monkeypatch)
    lone, prompt, batch = try_steps(Scheduler(bounds), executor, recordings, loading_seconds)
    assert executor.recorded == before
    for step, is_mixed in ((lone, False), (prompt, True), (batch, False)):
        kind = [size.num_tokens for size in before if size.is_mixed is is_mixed]
        is_eager = bool(recordable) and step.num_tokens > max(kind, default=0)
        assert step.seconds == pytest.approx(0.001 + 5e-5 * step.num_tokens + EAGER_SECONDS * is_eager)
    after = []
    while (size := recordings.choose_at_rest(now := REST_SECONDS * len(after) + 1e9)) is not None:
        recordings.note(size, now)
        after.append(size)
    assert after == sorted({*recordable} - {*before}, reverse=True), "the rest from the largest on"


def test_a_model_too_slow_for_a_trial_has_its_first_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = TimedExecutor(SHORT, base_seconds=0.5)
    follow(executor, monkeypatch)
    assert try_all(executor) == []
    assert executor.recorded == [StepSize(8), StepSize(1)]


def test_a_size_without_memory_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor goes on without it, and says nothing."""
    executor, recordings, asked = TimedExecutor(SHORT), Recordings(SIZES), list[Command]()
    follow(executor, monkeypatch)
    monkeypatch.setattr(executor, "control", asked.append)
    lone, _, batch = try_steps(Scheduler(SHORT), executor, recordings)
    eager = 0.001 + EAGER_SECONDS
    assert (lone.seconds, batch.seconds) == pytest.approx((eager + 2e-6, eager + 64e-6))
    assert asked == list(map(Record, (StepSize(8), StepSize(1), StepSize(32))))
    assert recordings.choose_at_work([StepSize(1), StepSize(8), StepSize(32)], 1e9) is None


def test_another_fault_of_a_recording_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = TimedExecutor(SHORT)

    def fail(command: Command) -> None:
        raise RuntimeError(f"CUDA error: an illegal memory access, at {command}")

    monkeypatch.setattr(executor, "control", fail)
    with pytest.raises(RuntimeError, match="illegal memory access, at Record"):
        try_all(executor)
