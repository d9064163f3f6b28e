"""A simulated replica's hardware and its nodes: the truth that the autoscaler has to learn.

A step is a roofline, not the straight line that `latency_model` fits: below some number of tokens it takes
the time to read the weights, beyond it the time to compute.

A replica tries some steps before its first request, as `millrace serve` does (`replica/trial.py`). A slow
replica tries smaller ones, so they say less. A test holds the two files to the same sizes.
"""

import math
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from millrace_operator.autoscaler.signals.observation import TrialStep

SHORT_CONTEXT = 8
SHORT_PROMPT, LONG_PROMPT = 64, 1024
LONGEST_SHORT_PROMPT_SECONDS = 4.0
LONGEST_PROMPT_SECONDS = 1.0
LEAST_BATCH_SECONDS = 0.2
LOADING_SHARE = 0.5
"""The part of a cold start for loading the model. Made up; the rest is for the pod and its image."""
BATCH_PER_LOADING = 0.05
MOST_SEQUENCES = 32
GROWTH = 1.025
"""The growth of a sequence's context until the last prompt is computed."""
MOST_DRAFTED = 64
"""Tokens that are guessed in a step at most, over all its sequences. Made up."""
PROMPTS_TO_FILL = 50
"""After so many prompts it has two thirds of what a full one has. Made up."""
HITS_ALIKE = 3.0
"""The found shares of single prompts have a beta law with this sum of parameters: most prompts are found
nearly whole, or hardly."""
IDLE_SECONDS = 600.0
"""How long a node stays without pods: the Cluster Autoscaler's default (`--scale-down-unneeded-time`)."""


class Guesses(NamedTuple):
    """Tokens for each sequence of a step, on average."""

    drafted: float = 0.0
    accepted: float = 0.0

    @property
    def written(self) -> float:
        """Tokens of an answer that a step yields."""
        return 1 + self.accepted


@dataclass(frozen=True)
class Hardware:
    """One kind of replica. Times in seconds, sizes in tokens."""

    overhead_seconds: float = 0.004
    """Of every step: scheduling, launches, sampling."""
    weights_seconds: float = 0.016
    """To read the weights once: no step is shorter."""
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
    """Of a busy replica: garbage collection, a slow disk, a busy neighbour."""
    stall_seconds: float = 0.3
    """Mean of a stall."""
    cold_start_seconds: float = 60.0
    """Mean time from a pod's creation until it is Ready."""
    cold_start_spread: float = 0.2
    """Standard deviation of that time, relative."""
    restart_seconds: float = 30.0
    """From a container's end until it is Ready again, without scheduling or pulling."""
    node_seconds: float = 0.0
    """Until a new node is there, before a pod's cold start. 0: there are enough nodes."""
    pods_per_node: int = 1
    warm_up_seconds: float = 15.0
    """Of computing, in which a new replica is slower: it compiles, and its caches are cold. Made up."""
    warm_up_factor: float = 2.0
    """The factor of its very first step. The excess falls linearly to zero."""
    prefix_hits: float = 0.0
    """The part of the prompts' tokens that a full prefix cache has. Single prompts vary."""
    draft_tokens: int = 0
    """Tokens that are guessed for a sequence in a step. 0: no speculation."""
    draft_acceptance: float = 0.6
    """The chance of a guess, if all before it came true."""

    def __post_init__(self) -> None:
        if not (0 <= self.prefix_hits < 1 and 0 <= self.draft_acceptance < 1):
            raise ValueError(
                f"prefix_hits is {self.prefix_hits} and draft_acceptance {self.draft_acceptance}; "
                "write parts from 0 to less than 1"
            )
        if self.warm_up_factor < 1:
            raise ValueError(f"warm_up_factor is {self.warm_up_factor}; write 1 (no warm-up) or more")
        if self.pods_per_node < 1:
            raise ValueError(f"pods_per_node is {self.pods_per_node}; write 1 or more")

    def slowness(self, computed_seconds: float) -> float:
        """Return the factor of a step's time after some seconds of computing."""
        if computed_seconds >= self.warm_up_seconds:
            return 1.0
        return self.warm_up_factor - (self.warm_up_factor - 1) * computed_seconds / self.warm_up_seconds

    def draft(self, batch: int) -> "Guesses":
        """Return the guesses for each sequence of a step with so many that decode."""
        drafted = min(float(self.draft_tokens), MOST_DRAFTED / batch) if batch else 0.0
        chance = self.draft_acceptance
        return Guesses(drafted, chance * (1 - chance**drafted) / (1 - chance))

    def step_seconds(self, tokens: float, context_tokens: float) -> float:
        """Return the seconds of a step with these computed tokens and this context."""
        compute = max(self.weights_seconds, self.token_seconds * tokens)
        return self.overhead_seconds + compute + self.context_seconds * context_tokens


class Size(NamedTuple):
    """The computed and the read tokens of a step."""

    tokens: int
    context_tokens: int


@lru_cache
def list_sizes(hardware: Hardware) -> tuple[Size, ...]:
    """Return the sizes of three tried steps: a token, a long prompt, several sequences; none if too slow."""
    if SHORT_PROMPT * hardware.step_seconds(1, SHORT_CONTEXT) > LONGEST_SHORT_PROMPT_SECONDS:
        return ()
    per_token = _prompt_seconds(hardware, SHORT_PROMPT) / SHORT_PROMPT
    length = int(min(LONGEST_PROMPT_SECONDS / per_token, LONG_PROMPT))
    if length < SHORT_PROMPT:
        return ()
    budget = max(BATCH_PER_LOADING * LOADING_SHARE * hardware.cold_start_seconds, LEAST_BATCH_SECONDS)
    number = int(budget / _prompt_seconds(hardware, length))
    number = max(1, min(number, MOST_SEQUENCES, hardware.max_sequences))
    chunk = min(length, hardware.max_batched_tokens)
    context = min(int(number * GROWTH * length), hardware.kv_tokens)
    return Size(1, SHORT_CONTEXT), Size(chunk, chunk), Size(number, context)


def _prompt_seconds(hardware: Hardware, length: int) -> float:
    """Return the seconds of a prompt, chunk by chunk."""
    chunk = min(length, hardware.max_batched_tokens)
    return math.ceil(length / chunk) * hardware.step_seconds(chunk, length)


def try_steps(hardware: Hardware, speed: float, *, is_warm: bool) -> tuple[TrialStep, ...]:
    """Return the tried steps as a replica of this speed measures them, each the median of some."""
    slowness = 1.0 if is_warm else hardware.slowness(0.0)
    return tuple(_try_step(hardware, size, speed, slowness) for size in list_sizes(hardware))


def _try_step(hardware: Hardware, size: Size, speed: float, slowness: float) -> TrialStep:
    rng = random.Random(f"{speed} {size.tokens}")  # noqa: S311  its own, so later requests keep their noise
    factor = speed * slowness * math.exp(rng.gauss(0, hardware.noise / 2))
    return TrialStep(factor * hardware.step_seconds(*size), *size)


@dataclass(slots=True)
class PrefixCache:
    """The part of the prompts' tokens that it has once it is full; 0 while there is nothing to find."""

    share: float
    rng: random.Random
    num_prompts: int = 0

    def look_up(self, prompt_tokens: int) -> int:
        """Return how many tokens of the next prompt it has: never the last one."""
        share = self.share * (1 - math.exp(-self.num_prompts / PROMPTS_TO_FILL))
        self.num_prompts += 1
        if not share:
            return 0
        drawn = self.rng.betavariate(HITS_ALIKE * share, HITS_ALIKE * (1 - share))
        return int(drawn * (prompt_tokens - 1))


@dataclass(slots=True, eq=False)
class Node:
    """A machine that pods share."""

    ready_at: float
    num_pods: int = 0
    emptied_at: float = 0.0


class Nodes:
    """Owner of the nodes. A pod gets a place on one, or waits for a node or for room."""

    def __init__(self, seconds: float, pods_per_node: int, capacity: int | None) -> None:
        self._seconds = seconds
        self._pods_per_node = pods_per_node
        self._capacity = capacity
        self._nodes: list[Node] = []
        self.num_pods = 0
        """Pods with a place, running or starting."""

    def place(self, now: float, *, is_ready: bool = False) -> Node | None:
        """Return the node of a new pod; None if the cluster is full.

        A new node is ready after its time, or at once if `is_ready`.
        """
        if self._capacity is not None and self.num_pods >= self._capacity:
            return None
        self._nodes = [node for node in self._nodes if node.num_pods or now - node.emptied_at < IDLE_SECONDS]
        node = next((node for node in self._nodes if node.num_pods < self._pods_per_node), None)
        if node is None:
            node = Node(now if is_ready else now + self._seconds)
            self._nodes.append(node)
        node.num_pods += 1
        self.num_pods += 1
        return node

    def leave(self, node: Node, now: float) -> None:
        """Free a pod's place."""
        node.num_pods -= 1
        node.emptied_at = now
        self.num_pods -= 1
