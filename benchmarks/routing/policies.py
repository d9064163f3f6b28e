"""Rules by which a gateway chooses a replica, as a simulation asks them."""

import json
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from benchmarks.routing.workload import BYTES_PER_TOKEN, Prompt
from millrace_gateway.route.prefix import hash_prefix
from millrace_gateway.route.prefix_affinity import Affinity, Candidate, find_load


class View(NamedTuple):
    """What one gateway knows of one replica."""

    num_own: int
    """This gateway's own requests in flight there."""
    num_waiting: int
    """At the last report; so are the next two."""
    num_running: int
    kv_usage: float
    num_change: int
    """By how many this gateway's own requests have become more since the last report."""
    num_gateways: int


class Policy(Protocol):
    """A rule."""

    def choose(self, prompt: Prompt, views: Sequence[View]) -> int:
        """Return the number of the replica."""


class LeastLoad:
    """The replica with the fewest of the gateway's own requests; ties rotate. The gateway's rule before."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, prompt: Prompt, views: Sequence[View]) -> int:
        """Return the number of the replica."""
        del prompt
        least = min(view.num_own for view in views)
        ties = [number for number, view in enumerate(views) if view.num_own == least]
        self._turn += 1
        return ties[self._turn % len(ties)]


class PrefixAffine:
    """The gateway's rule, on the bytes that a client would send."""

    def __init__(self) -> None:
        self._affinity = Affinity()

    def choose(self, prompt: Prompt, views: Sequence[View]) -> int:
        """Return the number of the replica."""
        replicas = [Candidate(str(number), find_load(*view[1:])) for number, view in enumerate(views)]
        return int(self._affinity.choose(hash_prefix(render_body(prompt), b""), replicas))


def render_body(prompt: Prompt) -> bytes:
    """Return the first messages of the request: what follows changes no name."""
    conversation = prompt.conversation
    system = f"You are assistant {conversation.system} of {conversation.seed}. "
    texts = (
        [system * (BYTES_PER_TOKEN * conversation.system_tokens // len(system))]
        if conversation.system_tokens
        else []
    )
    messages = [{"role": "system", "content": text} for text in texts]
    messages.append({"role": "user", "content": f"This is conversation {conversation.number}."})
    return json.dumps({"model": "chat", "messages": messages, "stream": True}).encode()
