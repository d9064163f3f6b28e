"""A simulated replica tries the same steps before its first request as a real one."""

from dataclasses import replace

import pytest

from millrace_operator.autoscaler.simulate.hardware import LOADING_SHARE, Hardware, list_sizes, try_steps
from millrace_operator.autoscaler.simulate.workloads import DAY_HARDWARE, RAMP_HARDWARE, TRACE_HARDWARE
from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.protocol.step import KvGroup, Limits
from millrace_runtime.replica import trial
from millrace_runtime.replica.recordings import Recordings
from tests.operator.autoscaler.simulate.timed_executor import TimedExecutor

SLOW = replace(DAY_HARDWARE, weights_seconds=0.08)
SLOW_PROMPTS = replace(DAY_HARDWARE, weights_seconds=0.01, token_seconds=0.003)
SHORT_CHUNKS = replace(DAY_HARDWARE, max_batched_tokens=512)


def try_really(hardware: Hardware, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return the sizes that `millrace serve` tries on such a replica, whose steps it times."""
    limits = Limits(
        groups=(KvGroup(num_blocks=hardware.kv_tokens // 16),),
        block_size=16,
        num_slots=hardware.max_sequences,
        depth=1,
        max_model_length=32_768,
        vocabulary_size=100,
        max_batched_tokens=hardware.max_batched_tokens,
    )
    executor = TimedExecutor(limits, hardware)
    clock = trial.StepClock
    monkeypatch.setattr(trial, "StepClock", lambda: clock(lambda: executor.now))
    loading = LOADING_SHARE * hardware.cold_start_seconds
    found = trial.try_steps(Scheduler(limits), executor, Recordings(()), loading)
    return [(step.num_tokens, step.num_context_tokens) for step in found]


@pytest.mark.parametrize(
    "hardware",
    [Hardware(), RAMP_HARDWARE, TRACE_HARDWARE, DAY_HARDWARE, SLOW, SLOW_PROMPTS, SHORT_CHUNKS],
)
def test_the_sizes_are_those_of_a_real_replica(hardware: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    real, simulated = try_really(hardware, monkeypatch), list_sizes(hardware)
    assert [tokens for tokens, _ in real] == [size.tokens for size in simulated]
    for (_, context), size in zip(real, simulated, strict=True):
        assert size.context_tokens == pytest.approx(context, rel=0.1, abs=8)


def test_a_slow_replica_tries_nothing() -> None:
    assert list_sizes(SLOW) == ()
    assert try_steps(SLOW, 1.0, is_warm=True) == ()
    assert len(list_sizes(DAY_HARDWARE)) == 3
