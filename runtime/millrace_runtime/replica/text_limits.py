"""What the text worker may use of what this replica may use."""

from collections.abc import Mapping

from millrace_runtime.chat.worker_process import TextLimits
from millrace_runtime.replica.cpu_limit import read_num_cpus

_MAX_THREADS = 4
_SHARE_OF_MEMORY = 0.25
"""The weights and the KV cache are to have the most of it."""
_MIN_MEMORY_BYTES = 1024**3
"""A tokenizer of 128k pieces takes some hundreds of MB to load; the rest is enough for 1 MB of text."""
_MAX_MEMORY_BYTES = 4 * 1024**3
"""Nearly 8 MiB of any text, the longest body. What memory is too small for, the worker refuses."""


def plan_text_limits(environment: Mapping[str, str], usable_bytes: int) -> TextLimits:
    """Return the limits of a replica with these variables and so much memory to plan with."""
    share = int(usable_bytes * _SHARE_OF_MEMORY)
    return TextLimits(
        memory_bytes=min(max(share, _MIN_MEMORY_BYTES), _MAX_MEMORY_BYTES),
        num_threads=min(_MAX_THREADS, read_num_cpus(environment)),
    )
