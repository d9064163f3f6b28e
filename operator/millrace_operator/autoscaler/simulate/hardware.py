"""What a simulated replica is made of: the truth that the autoscaler has to learn.

A step is a roofline, not the straight line that `latency_model` fits: below some number of tokens it takes
the time to read the weights, beyond it the time to compute.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Hardware:
    """One kind of replica. Times in seconds, sizes in tokens."""

    overhead_seconds: float = 0.004
    """Of every step: scheduling, launches, sampling."""
    weights_seconds: float = 0.016
    """To read the weights once: a step takes no less."""
    token_seconds: float = 0.00025
    """To compute one token."""
    context_seconds: float = 2e-8
    """To read one token's keys and values."""
    max_sequences: int = 256
    max_batched_tokens: int = 8192
    kv_tokens: int = 300_000
    noise: float = 0.05
    """Standard deviation of a step's time, relative."""
    unevenness: float = 0.02
    """Standard deviation of a replica's speed, relative: no two are alike."""
    stalls_per_hour: float = 6.0
    """Of a busy replica: garbage, a slow disk, a neighbour."""
    stall_seconds: float = 0.3
    """Mean of a stall."""
    cold_start_seconds: float = 60.0
    """Mean time from a pod's creation until it is Ready."""
    cold_start_spread: float = 0.2
    """Standard deviation of that time, relative."""
    restart_seconds: float = 30.0
    """From a container's end until it is Ready again: nothing to schedule or to pull."""
    node_seconds: float = 0.0
    """Until a new node is there, which a pod's cold start waits for. 0: there are nodes enough."""
    pods_per_node: int = 1
    warm_up_seconds: float = 15.0
    """Of computing, in which a new replica is slower: it compiles, and its caches are cold. Made up."""
    warm_up_factor: float = 2.0
    """By which its very first step takes longer. The excess falls evenly to nothing."""

    def __post_init__(self) -> None:
        if self.warm_up_factor < 1:
            raise ValueError(f"warm_up_factor is {self.warm_up_factor}; write 1 (no warm-up) or more")
        if self.pods_per_node < 1:
            raise ValueError(f"pods_per_node is {self.pods_per_node}; write 1 or more")

    def slowness(self, computed_seconds: float) -> float:
        """Return how many times as long a step takes after so many seconds of computing."""
        if computed_seconds >= self.warm_up_seconds:
            return 1.0
        return self.warm_up_factor - (self.warm_up_factor - 1) * computed_seconds / self.warm_up_seconds

    def step_seconds(self, tokens: float, context_tokens: float) -> float:
        """Return what a step takes that computes so many tokens and reads so much context."""
        compute = max(self.weights_seconds, self.token_seconds * tokens)
        return self.overhead_seconds + compute + self.context_seconds * context_tokens
