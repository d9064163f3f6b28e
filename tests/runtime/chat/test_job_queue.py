"""Whose turn it is at the text worker."""

from dataclasses import dataclass

import pytest

from millrace_runtime.chat.job_queue import SMALL_BYTES, JobQueue


@dataclass(frozen=True)
class Job:
    name: str
    num_bytes: int = 10


def large(name: str) -> Job:
    return Job(name, SMALL_BYTES + 1)


def drain(queue: JobQueue[Job]) -> str:
    return "".join(queue.pop().name for _ in range(len(queue)))


def test_small_jobs_overtake_and_large_ones_get_their_turns() -> None:
    queue: JobQueue[Job] = JobQueue()
    for job in (large("A"), large("B"), *map(Job, "abcdefghijklmnopqrst")):
        queue.add(job)
    assert drain(queue) == "abcdefghAijklmnopBqrst"


def test_a_job_that_is_not_wanted_leaves() -> None:
    queue: JobQueue[Job] = JobQueue()
    gone = large("A")
    for job in (gone, Job("a"), large("B")):
        queue.add(job)
    queue.remove(gone)
    assert drain(queue) == "aB"
    with pytest.raises(ValueError, match="not in deque"):
        queue.remove(gone)
    with pytest.raises(IndexError):
        queue.pop()
