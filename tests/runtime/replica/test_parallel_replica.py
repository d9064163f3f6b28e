"""The real processes of a replica whose model several workers hold together."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from millrace_runtime import contract
from millrace_runtime.replica.lifecycle import EXIT_ENGINE_FAILED
from testing.polling import wait_until
from tests.runtime.replica.conftest import Replica

pytestmark = pytest.mark.slow
LOST_SECONDS = 10.0
"""Within which a lost worker ends the replica."""


def start_parallel(start: Callable[..., Replica], model_path: Path, *, is_forked: bool = True) -> Replica:
    settings = ("--tensor-parallel", "2", "--device", "cpu")
    replica = start("--model", str(model_path), *settings, is_forked=is_forked)
    assert replica.address
    return replica


@pytest.fixture
def parallel(start: Callable[..., Replica], model_path: Path) -> Replica:
    return start_parallel(start, model_path)


def workers_of(replica: Replica) -> list[int]:
    engine = replica.children()["engine_process"]
    return [int(pid) for pid in Path(f"/proc/{engine}/task/{engine}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_workers_answer_as_one_process_does(
    start: Callable[..., Replica], model_path: Path, client: httpx.Client
) -> None:
    parallel = start_parallel(start, model_path, is_forked=False)
    assert len(workers_of(parallel)) == 2
    body = {"model": "tiny", "prompt": "the fox", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    alone = start("--model", str(model_path), "--device", "cpu")
    texts = [
        client.post(f"{replica.address}/v1/completions", json=body).json()["choices"][0]["text"]
        for replica in (parallel, alone)
    ]
    assert texts[0] == texts[1]
    parallel.process.send_signal(signal.SIGTERM)
    assert parallel.wait() == 0


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (signal.SIGKILL, "worker 1 of 2 was killed by SIGKILL; more memory may be needed"),
        (signal.SIGSTOP, "worker 1 of 2 is stopped: no heartbeat"),
    ],
)
def test_a_lost_worker_ends_the_replica_with_its_reason(
    parallel: Replica, client: httpx.Client, sent: signal.Signals, said: str
) -> None:
    workers = workers_of(parallel)
    body = {"model": "tiny", "prompt": "x", "max_tokens": 4000, "stream": True, "ignore_eos": True}
    with client.stream("POST", f"{parallel.address}/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        began = time.monotonic()
        os.kill(workers[1], sent)
        rest = [line for line in lines if line]
    assert any('"error"' in line and "engine" in line for line in rest), rest[-2:]
    assert parallel.wait() == EXIT_ENGINE_FAILED
    assert time.monotonic() - began < LOST_SECONDS
    assert said in parallel.lines[-1]
    assert not any("Traceback" in line for line in parallel.lines)
    wait_until("no worker is left", lambda: not any(map(is_running, workers)))


def test_no_worker_outlives_a_killed_supervisor(parallel: Replica) -> None:
    workers = workers_of(parallel)
    parallel.process.kill()
    wait_until("no worker is left", lambda: not any(map(is_running, workers)))


def test_no_worker_outlives_a_killed_engine(parallel: Replica) -> None:
    workers = workers_of(parallel)
    os.kill(parallel.children()["engine_process"], signal.SIGKILL)
    assert parallel.wait() == 128 + signal.SIGKILL
    wait_until("no worker is left", lambda: not any(map(is_running, workers)))


def test_more_workers_than_a_model_has_heads_are_refused_in_one_line(
    start: Callable[..., Replica], model_path: Path
) -> None:
    replica = start("--model", str(model_path), "--tensor-parallel", "3", "--device", "cpu")
    assert replica.wait() == contract.EXIT_BAD_MODEL
    assert "2 heads over 1 KV heads can't be shared by 3 workers" in replica.lines[-1]
    assert not any("Traceback" in line for line in replica.lines)
