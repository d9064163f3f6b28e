"""Which sequence is preempted when the KV cache has no free block."""

from collections.abc import Iterable

from millrace_runtime.engine.sequence import Sequence


def choose_victim(candidates: Iterable[Sequence]) -> Sequence:
    """Return the least urgent one: the sequence with the fewest tokens to recompute, then the youngest.

    The caller leaves out the oldest sequence, so that each one ends at some time.
    """
    victim = max(candidates, key=lambda s: (s.age.priority, -s.num_computed, s.age.arrival), default=None)
    assert victim is not None, "the oldest sequence alone has no room: it should never have been admitted"
    return victim
