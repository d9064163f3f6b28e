"""What the text worker may use of what this replica may use. Standard library only: the supervisor asks."""

from collections.abc import Mapping

from millrace_runtime.replica.cpu_limit import read_num_cpus

_MAX_THREADS = 4
_SHARE_OF_MEMORY = 0.25
"""The weights and the KV cache are to have the most of it."""
_MOST_OF_LITTLE = 0.5
_ENOUGH_BYTES = 1024**3
"""A tokenizer of 128k pieces takes some hundreds of MB to load."""
_MAX_MEMORY_BYTES = 4 * 1024**3
"""8 MiB of text, the longest body, take 1.6 GB."""


def plan_text_memory(usable_bytes: int) -> int:
    """Return a quarter of what the replica may plan with, of little a half if that is no more than enough."""
    enough = min(_ENOUGH_BYTES, int(usable_bytes * _MOST_OF_LITTLE))
    return min(max(int(usable_bytes * _SHARE_OF_MEMORY), enough), _MAX_MEMORY_BYTES)


def count_text_threads(environment: Mapping[str, str]) -> int:
    """Return the threads of a replica with these variables."""
    return min(_MAX_THREADS, read_num_cpus(environment))
