"""Workers record together: all of them, or none."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Semaphore
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from millrace_runtime.execution.errors import WorkerError
from millrace_runtime.execution.local import LocalExecutor
from millrace_runtime.execution.parallel.executor import ParallelExecutor
from millrace_runtime.execution.parallel.messages import FromWorker, Recorded, ToWorker
from millrace_runtime.execution.parallel.worker_process import Worker
from millrace_runtime.protocol.executor import Forget, Record
from millrace_runtime.protocol.step import StepSize


class Pool:
    """Workers of which some have memory for a recording."""

    def __init__(self, *are_there: bool) -> None:
        self.count = len(are_there)
        self.sent: list[ToWorker] = []
        self.answers = deque(enumerate(map(Recorded, are_there)))

    def broadcast(self, message: ToWorker) -> None:
        self.sent.append(message)

    def receive(self, _timeout: float) -> Iterator[tuple[int, FromWorker]]:
        if not self.answers:
            raise WorkerError("worker 1 of 2 was killed by SIGKILL")
        yield self.answers.popleft()

    def end(self) -> None:
        """Nothing runs."""


@contextmanager
def opened(pool: Any) -> Iterator[ParallelExecutor]:
    allocated: Any = SimpleNamespace(limits=SimpleNamespace(max_draft=0), placement=None)
    executor = ParallelExecutor(pool, allocated, TemporaryDirectory())
    try:
        yield executor
    finally:
        executor.end()


def test_a_recording_ends_when_all_have_recorded() -> None:
    pool = Pool(True, True)
    with opened(pool) as executor:
        executor.control(Record(StepSize(8)))
    assert pool.sent == [Record(StepSize(8))]
    assert not pool.answers


def test_what_one_has_no_memory_for_all_forget() -> None:
    pool = Pool(True, False, True)
    with opened(pool) as executor:
        executor.control(Record(StepSize(8)))
    assert pool.sent == [Record(StepSize(8)), Forget(StepSize(8))]
    assert not pool.answers


def test_a_worker_that_dies_meanwhile_is_reported() -> None:
    pool = Pool(True, True)
    pool.count = 3
    with opened(pool) as executor, pytest.raises(WorkerError, match="SIGKILL"):
        executor.control(Record(StepSize(8)))


def test_the_place_where_workers_met_is_there_until_they_end() -> None:
    with opened(Pool()) as executor:
        folder = Path(executor._folder.name)
        assert folder.exists()
    assert not folder.exists()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_worker_says_whether_it_has_recorded(*, is_there: bool) -> None:
    said: list[FromWorker] = []
    channel: Any = SimpleNamespace(send=said.append)
    executor: Any = SimpleNamespace(
        limits=SimpleNamespace(depth=2),
        recorded=frozenset({StepSize(8)} if is_there else ()),
        control=lambda _command: None,
    )
    arguments: Any = SimpleNamespace(index=1)
    Worker(arguments, channel)._obey(Record(StepSize(8)), executor, Semaphore(2))
    assert said == [Recorded(is_there)]


def test_a_thread_that_waits_for_a_device_uses_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread begins with device 0, where another worker lives."""
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    executor: Any = SimpleNamespace(_device=torch.device("cuda:1"))
    LocalExecutor.enter_thread(executor)
    assert chosen == [torch.device("cuda:1")]
