"""Once a replica is ready, no kernel is compiled any more: each step would wait for it.

Triton compiles a kernel again for other constants, and for arguments of another kind: a type, a memory
address or a number that 16 divides or not, and the number 1. The interpreter shows each launch's arguments.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from triton.runtime.interpreter import GridExecutor

from millrace_kernels.device_kernels import select_triton
from millrace_kernels.sampling.columns import Sampled
from millrace_kernels.sampling.gpu.triton_kernel import sample as triton_sample
from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.execution import model_runner
from millrace_runtime.execution.build import build_executor
from millrace_runtime.execution.settings import ExecutionSettings
from millrace_runtime.protocol.executor import Forget, Record
from millrace_runtime.protocol.messages import NewSequence
from millrace_runtime.protocol.sampling import Sampling
from millrace_runtime.protocol.step import StepSize
from millrace_runtime.replica.recordings import Recordings
from millrace_runtime.replica.trial import try_steps
from tests.runtime.engine.engine_driver import request
from tests.runtime.execution.conftest import SMALL

UNSPECIALISED = {"num_rows", "number", "count"}
"""compile_for_gpu.py checks that these are declared so."""


class Launches:
    """The kinds of launches so far."""

    def __init__(self) -> None:
        self.kinds: set[Any] = set()

    def note(self, executor: GridExecutor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = executor.arg_names
        given = dict(zip(names, args, strict=False)) | kwargs
        kinds = ((name, _kind(value)) for name, value in given.items() if name not in UNSPECIALISED)
        self.kinds.add((executor.fn.__name__, frozenset(kinds)))


def _kind(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, int) and not isinstance(value, bool):
        return "one" if value == 1 else value % 16 == 0
    return type(value)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launches]:
    """What is launched, on the GPU's path; the kernels themselves need not compute.

    What they leave unwritten is zero here: a trial refuses what else was in memory, if that is no number.
    """
    noted = Launches()
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, getattr(torch, name.replace("empty", "zeros")))
    monkeypatch.setattr(torch.Tensor, "new_empty", torch.Tensor.new_zeros)
    monkeypatch.setattr(model_runner, "select_kernels", lambda _: select_triton())
    monkeypatch.setattr(model_runner, "MIN_GEMM_ROWS", 0)
    monkeypatch.setattr(
        GridExecutor, "__call__", lambda executor, *args, **kwargs: noted.note(executor, args, kwargs)
    )
    return noted


SAMPLINGS = [
    Sampling(temperature=0.0),
    Sampling(),
    Sampling(top_p=0.9, num_logprobs=0),
    Sampling(top_k=3, presence_penalty=0.5),
    Sampling(temperature=0.0, frequency_penalty=1.0, num_logprobs=1),
    Sampling(min_p=0.1, num_logprobs=16),
    Sampling(num_prompt_logprobs=1),
    Sampling(num_logprobs=3, num_prompt_logprobs=5),
    Sampling(repetition_penalty=1.3, bias={3: 1.0, 7: -5.0}),
    Sampling(temperature=0.0, allowed=b"\xff" * 28, min_tokens=3, held_back=(1,)),
]


def draw_nothing(*asked: Any) -> Sampled:
    """Launch the sampler's kernels; no number of theirs means anything."""
    return Sampled(*map(torch.zeros_like, triton_sample(*asked)))


class EmptyRecorder:
    """Records as CUDA does: a repetition launches nothing."""

    def __call__(self, compute: Callable[[], None]) -> Callable[[], None]:
        compute()
        return self.forget

    def forget(self) -> None:
        """Nothing is kept."""


@pytest.mark.parametrize("in_trial", [(), (1, 8)])
def test_the_trial_compiles_all_that_serving_needs(
    make_model: Callable[..., Path],
    launches: Launches,
    monkeypatch: pytest.MonkeyPatch,
    in_trial: tuple[int, ...],
) -> None:
    """Also one whose steps are recorded: later ones may not be."""
    settings = SMALL | {"max_batched_tokens": 64}
    executor = build_executor(ExecutionSettings(make_model(), kernels="torch", **settings))
    executor._runner.sampler = executor._runner.sampler._replace(draw=draw_nothing)
    monkeypatch.setattr(executor._runner, "_recorder", EmptyRecorder())
    executor.limits = msgspec.structs.replace(executor.limits, recordable=tuple(map(StepSize, in_trial)))
    scheduler = Scheduler(executor.limits)
    try_steps(scheduler, executor, Recordings(executor.limits.recordable))
    assert executor.recorded == set(executor.limits.recordable)
    known = set(launches.kinds)
    assert len(known) == 15
    for size in executor.recorded:
        executor.control(Forget(size))
    for number in range(1, 40):
        one = request(number, range(1 + number * 7 % 100), max_tokens=3 + number % 5)
        sequences = [NewSequence(number, SAMPLINGS[number % len(SAMPLINGS)])]
        scheduler.add(msgspec.structs.replace(one, sequences=sequences))
    while (plan := scheduler.schedule()) is not None:
        executor.submit(plan)
        scheduler.commit(executor.collect())
        assert launches.kinds - known == set()
    sizes = (StepSize(7), StepSize(9, is_mixed=True), StepSize(32, is_mixed=True))
    executor.limits = msgspec.structs.replace(executor.limits, recordable=sizes)
    for size in sizes:
        executor.control(Record(size))
    assert launches.kinds - known == set(), "nor does recording compile any"
    names = [name for name, _ in launches.kinds]
    assert sorted(names) == sorted(set(names)), "one way to launch each is enough"
