"""Whose proof runs, and how far."""

import pytest

from millrace_runtime.grammar.proof_queue import ProofQueue


@pytest.fixture
def queue() -> ProofQueue[str]:
    queue: ProofQueue[str] = ProofQueue(3)
    for name in "abc":
        queue.add(name)
    return queue


def start(queue: ProofQueue[str]) -> str:
    return " ".join(f"{key}{level}" for key, level in queue.start_due())


def test_a_proof_that_takes_long_makes_way_at_each_level(queue: ProofQueue[str]) -> None:
    seen = [start(queue)]
    for ended, key in [(False, "a"), (True, "b"), (False, "c"), (False, "a"), (False, "a"), (True, "c")]:
        if ended:
            queue.remove(key)
        elif not queue.promote(key):
            seen.append(f"no more of {key}")
            queue.remove(key)
        seen.append(start(queue))
    assert seen == ["a0", "b0 a1", "c0", "", "c1 a2", "no more of a", "", ""]
    queue.add("d")
    assert start(queue) == "d0"


def test_a_proof_that_nobody_wants_leaves_its_place(queue: ProofQueue[str]) -> None:
    assert start(queue) == "a0"
    queue.remove("b")
    queue.remove("a")
    assert start(queue) == "c0"
    queue.promote("c")
    queue.remove("c")
    assert start(queue) == ""
