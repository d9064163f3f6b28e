"""The limits on a text worker's time and memory. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TextLimits:
    """Limits on the worker's time and memory."""

    job_seconds: float = 10.0
    """A job that runs longer is killed with the worker."""
    memory_bytes: int = 4 * 1024**3
    """Data memory of the worker's process."""
    num_threads: int = 1
    """Threads that tokenise the prompts of one job."""
    start_seconds: float = 60.0
    """How long loading the tokenizer may take."""
    proof_seconds: float = 30.0
    """A process that ends earlier, and has answered no job, counts as a failed start."""
    retry_seconds: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
    """The pauses between attempts to start it: there is one attempt more than pauses."""
