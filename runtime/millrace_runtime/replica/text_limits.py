"""The text worker's share of the replica's memory and CPUs.

Standard library only: the supervisor imports it.
"""

from collections.abc import Mapping

from millrace_runtime.replica.cpu_limit import read_num_cpus

_MAX_THREADS = 4
_SHARE_OF_MEMORY = 1 / 16
"""Most of it is for the weights and the KV cache."""
_ENOUGH_BYTES = 512 * 1024**2
"""A tokenizer of 128k pieces takes 125 MB; the rest is enough for 0.7 MB of any text."""
_SHARE_OF_LITTLE = 0.25
"""The most of a small memory, also where _ENOUGH_BYTES would be more."""
_MAX_MEMORY_BYTES = 4 * 1024**3
"""Enough for nearly 8 MiB of any text, the longest body. The worker refuses a text that needs more."""


def plan_text_memory(usable_bytes: int) -> int:
    """Return the text worker's share of the bytes that the replica may use."""
    enough = min(_ENOUGH_BYTES, int(usable_bytes * _SHARE_OF_LITTLE))
    return min(max(int(usable_bytes * _SHARE_OF_MEMORY), enough), _MAX_MEMORY_BYTES)


def count_text_threads(environment: Mapping[str, str]) -> int:
    """Return how many threads tokenise, in a replica with these environment variables."""
    return min(_MAX_THREADS, read_num_cpus(environment))
