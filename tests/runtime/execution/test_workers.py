"""Workers that hold a model together: what they draw, and how they end."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace_runtime.execution.errors import ModelError, WorkerError, describe
from millrace_runtime.execution.parallel import heartbeats, worker_pool
from millrace_runtime.execution.parallel.executor import ParallelExecutor, read_num_threads
from millrace_runtime.execution.parallel.heartbeats import Watch
from millrace_runtime.execution.parallel.messages import Failed, FromWorker
from millrace_runtime.execution.parallel.worker_process import Worker
from millrace_runtime.protocol.executor import Sleep, Wake
from millrace_runtime.protocol.sampling import count_mask_bytes
from millrace_runtime.protocol.step import Placement, Row, StepPlan
from testing.polling import wait_until
from tests.runtime.execution.greedy import check_greedy, generate, prompt

MODELS = {
    "grouped, untied": {"num_attention_heads": 8, "num_key_value_heads": 4},
    "one KV head, tied": {"num_attention_heads": 8, "num_key_value_heads": 1, "tie_word_embeddings": True},
    "ungrouped, with biases": {
        "num_attention_heads": 8, "num_key_value_heads": 8, "attention_bias": True, "mlp_bias": True,
    },
}  # fmt: skip
LOST_SECONDS = 10.0
"""Within which the engine reports a lost worker."""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("name", list(MODELS))
def test_greedy_output_agrees_with_transformers(
    make_model: Callable[..., Path], make_driver: Callable[..., Any], name: str, workers: int
) -> None:
    path = make_model(intermediate_size=136, **MODELS[name])  # in units of 32, each worker has some
    check_greedy(path, prompt(277, 0), lambda folder: make_driver(folder, workers))


@pytest.mark.slow
def test_greedy_output_agrees_with_transformers_where_torch_computes(
    make_model: Callable[..., Path], make_driver: Callable[..., Any]
) -> None:
    path = make_model(intermediate_size=136, **MODELS["grouped, untied"])
    check_greedy(path, prompt(37, 0), lambda folder: make_driver(folder, 2, kernels="torch"))


def test_workers_say_what_the_model_lies_on(
    make_model: Callable[..., Path], start_pool: Callable[..., ParallelExecutor]
) -> None:
    executor = start_pool(make_model(), 2, kernels="torch")
    assert executor.placement == Placement("cpu", "torch", "float32", "FromCheckpoint", 2)


@pytest.mark.parametrize("kv_cache", ["Model", "Int8"])
def test_all_workers_draw_with_one_seed_through_preemption(
    make_model: Callable[..., Path], make_driver: Callable[..., Any], kv_cache: str
) -> None:
    """Several workers draw the tokens of one, also when the engine computes the sequence again."""
    path, outputs = make_model(), []
    for workers in (1, 2):
        driver = make_driver(path, workers, kv_cache=kv_cache)
        sampling = {
            "temperature": 0.9, "top_p": 0.95, "seed": 11, "frequency_penalty": 0.3,
            "repetition_penalty": 1.2, "bias": {5: -float("inf"), 6: 0.5},
            "allowed": b"\xfe\xff\xff\xff" * 7, "min_tokens": 5, "held_back": (6,),
        }  # fmt: skip
        driver.start(3, prompt(40, 0), **sampling)
        driver.start(5, prompt(21, 1), temperature=1.0, seed=5)
        generate(driver, 3, 16, 20)
        known = driver.release(3)
        driver.run({})
        driver.start(3, known, num_prompt=40, **sampling)
        generate(driver, 3, 16, 20)
        outputs.append((driver.known[3], driver.known[5]))
    assert outputs[0] == outputs[1]
    assert not {token for token in outputs[0][0][40:] if token == 5 or token % 32 == 0}


def test_logprobs_masks_and_commands_are_those_of_one_executor(
    make_model: Callable[..., Path], make_driver: Callable[..., Any]
) -> None:
    driver = make_driver(make_model(), 2)
    executor = driver.executor
    executor.control(Sleep())
    executor.control(Wake())
    driver.start(0, prompt(9, 0), num_logprobs=2)
    [result] = driver.run({0: 9})
    assert len(result.logprobs[0].top_tokens) == 2
    executor.submit(StepPlan(driver.step, [], [], [], [Row(0, 1, emit=True, is_masked=True)]))
    assert not executor.wait(0.2), "its masks are missing"
    allowed = bytearray(count_mask_bytes(199))
    allowed[150 // 8] = 1 << 150 % 8
    executor.provide_masks(driver.step, memoryview(allowed))
    assert executor.collect().rows[0].tokens == [150]


def test_steps_are_seen_to_advance(make_model: Callable[..., Path], make_driver: Callable[..., Any]) -> None:
    driver = make_driver(make_model(), 2)
    before = driver.executor.progress
    driver.start(0, prompt(9, 0))
    driver.run({0: 9})
    wait_until("it has advanced", lambda: driver.executor.progress > before)


def pids(executor: ParallelExecutor) -> list[int]:
    return [member.process.pid for member in executor._pool._members]


def watch(executor: ParallelExecutor) -> str:
    """Return why the workers are given up, as an idle engine looks for it."""
    until = time.monotonic() + LOST_SECONDS
    while time.monotonic() < until:
        try:
            executor.check()
        except WorkerError as error:
            return str(error)
        time.sleep(0.05)
    return "nothing was reported"


@pytest.mark.parametrize("index", [0, 1])
def test_a_killed_worker_is_reported_while_idle(
    make_model: Callable[..., Path], start_pool: Callable[..., ParallelExecutor], index: int
) -> None:
    executor = start_pool(make_model())
    executor.check()
    os.kill(pids(executor)[index], signal.SIGKILL)
    assert watch(executor) == f"worker {index} of 2 was killed by SIGKILL; more memory may be needed"


def test_a_stopped_worker_is_reported_though_its_socket_is_open(
    make_model: Callable[..., Path], start_pool: Callable[..., ParallelExecutor]
) -> None:
    executor = start_pool(make_model())
    os.kill(pids(executor)[1], signal.SIGSTOP)
    assert watch(executor).startswith("worker 1 of 2 is stopped: no heartbeat for")


def test_a_worker_that_is_stopped_in_a_step_ends_the_wait_for_it(
    make_model: Callable[..., Path], make_driver: Callable[..., Any]
) -> None:
    driver = make_driver(make_model(), 2)
    driver.start(0, prompt(9, 0))
    driver.run({0: 9})
    os.kill(pids(driver.executor)[1], signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(WorkerError, match="worker 1 of 2 is stopped"):
        driver.run({0: 1})
    assert time.monotonic() - began < LOST_SECONDS


def test_who_was_stopped_together_with_the_workers_gives_them_time() -> None:
    watch = Watch(100.0)
    assert watch.measure_silence(99.9, 101.0) == 1.0
    assert watch.measure_silence(99.9, 103.0) == 3.0, "it goes on looking, and they are silent"
    assert watch.measure_silence(99.9, 160.0) == 0.0, "a container that was paused for 57 s"
    assert watch.measure_silence(99.9, 161.0) == 1.0
    assert watch.measure_silence(160.5, 162.0) == 1.5


def test_a_paused_container_goes_on(
    make_model: Callable[..., Path], make_driver: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its processes are stopped for longer than a worker may be silent."""
    monkeypatch.setattr(worker_pool, "SILENCE_SECONDS", 1.0)
    monkeypatch.setattr(heartbeats, "LOOK_SECONDS", 0.5)
    driver = make_driver(make_model(), 2)
    driver.start(0, prompt(9, 0))
    driver.run({0: 9})
    for pid in pids(driver.executor):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2)
    for pid in pids(driver.executor):
        os.kill(pid, signal.SIGCONT)
    driver.run({0: 1})
    driver.executor.check()


def test_an_error_in_one_workers_step_is_reported_in_its_words(
    make_model: Callable[..., Path], start_pool: Callable[..., ParallelExecutor]
) -> None:
    executor = start_pool(make_model())
    executor.submit(StepPlan(0, [7], [], [], []))
    with pytest.raises(WorkerError, match=r"worker \d of 2 failed: PlanError: slot 7 holds no sequence"):
        executor.collect()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError(""), "RuntimeError"),
        (ValueError("at 2:4:\n\n  x = y\nis unknown"), "ValueError: at 2:4:; x = y; is unknown"),
        (
            RuntimeError("NCCL error\nLast error:\nout of memory"),
            "RuntimeError: NCCL error; Last error:; out of memory",
        ),
    ],
)
def test_an_error_is_reported_in_a_line(error: Exception, line: str) -> None:
    assert describe(error) == line


def test_an_error_of_a_device_is_reported_by_its_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[FromWorker] = []
    arguments, channel = SimpleNamespace(index=1), SimpleNamespace(send=said.append)
    error = RuntimeError("CUDA error: an illegal memory access\nConsider passing CUDA_LAUNCH_BLOCKING=1\n")
    Worker(arguments, channel).fail(error)  # type: ignore[arg-type]
    assert said == [Failed("RuntimeError: CUDA error: an illegal memory access", False)]
    assert "CUDA_LAUNCH_BLOCKING" in capsys.readouterr().err, "the traceback has all of them"


def test_workers_end_with_the_engine(
    make_model: Callable[..., Path], start_pool: Callable[..., ParallelExecutor]
) -> None:
    executor = start_pool(make_model(num_key_value_heads=3), 3, is_forked=False)
    running = pids(executor)
    executor.end()
    assert not any(Path(f"/proc/{pid}").exists() for pid in running)


def test_what_one_worker_cannot_load_is_the_models_fault(
    make_model: Callable[..., Path], start_pool: Callable[..., ParallelExecutor]
) -> None:
    path = make_model()
    (path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ModelError, match="can't be read as safetensors"):
        start_pool(path)


@pytest.mark.parametrize(
    ("count", "text"),
    [(3, "6 heads over 2 KV heads can't be shared by 3 workers"), (4, "can't be shared by 4 workers")],
)
def test_heads_that_cannot_be_shared_are_refused(
    make_model: Callable[..., Path], start_pool: Callable[..., ParallelExecutor], count: int, text: str
) -> None:
    with pytest.raises(ModelError, match=text):
        start_pool(make_model(), count)


def test_a_cache_too_small_for_one_sequence_is_refused(
    make_model: Callable[..., Path], start_pool: Callable[..., ParallelExecutor]
) -> None:
    with pytest.raises(ModelError, match="lower --max-model-length or give the cache more memory"):
        start_pool(make_model(), kv_cache_bytes=4096)


def test_a_worker_keeps_its_heads_alone(
    make_model: Callable[..., Path], start_pool: Callable[..., ParallelExecutor]
) -> None:
    """Half of the heads: so a cache of the same size holds twice as much."""
    lines: list[str] = []
    path = make_model(max_position_embeddings=100_000)
    settings = {"kv_cache_bytes": 1 << 20, "max_model_length": None}
    executor = start_pool(path, 2, lines.append, **settings)
    # 2 layers of a key and a value for one KV head of 8 numbers in float32, for 16 tokens
    assert executor.limits.groups[0].num_blocks == (1 << 20) // (2 * 2 * 8 * 4 * 16)
    assert "each of 2 workers has a KV cache of" in lines[-1]


@pytest.mark.parametrize(("said", "threads"), [("4,2", 4), ("3", 3), ("", None), ("many", None), ("0", None)])
def test_the_threads_of_the_outermost_level_count(said: str, threads: int | None) -> None:
    assert read_num_threads({"OMP_NUM_THREADS": said}) == (threads or os.cpu_count())


def test_workers_start_where_each_level_of_threads_has_a_number(
    make_model: Callable[..., Path],
    start_pool: Callable[..., ParallelExecutor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    assert start_pool(make_model(), 2).placement.tensor_parallel == 2
