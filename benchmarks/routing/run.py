"""Runs one policy under one load: gateways that hear of replicas a little late, and what clients see."""

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.routing.policies import Policy, View
from benchmarks.routing.replica import HARDWARE, Job, SimulatedReplica
from benchmarks.routing.workload import Chats, Conversation, Prompt, Writer
from millrace_operator.autoscaler.simulate.agenda import Agenda
from testing.traffic import percentile

REPORT_SECONDS = 0.25
"""Between two reports of a replica's load to a gateway."""
WARM_SECONDS = 60.0
"""At the beginning, of which nothing counts."""
Open = Callable[[], Policy]


class Load(NamedTuple):
    """How much traffic comes."""

    seconds: float
    rate: float = 0.0
    """Conversations a second, Poisson; 0: there are clients instead."""
    num_clients: int = 0
    """Clients that begin the next conversation when one ends, and never think: as many requests in flight."""


@dataclass(frozen=True)
class Outcome:
    """What came of one run, without its warm-up."""

    mean_ttft: float
    """Mean time to first token, seconds."""
    p95_ttft: float
    requests_per_second: float
    """Those that ended."""
    found_share: float
    """Of the prompts' tokens: those that a prefix cache had."""
    highest_load: float
    """The mean number of requests in flight at the busiest replica, over that of all replicas."""


class Gateway:
    """One gateway: its own counts, and the replicas' reports."""

    def __init__(self, policy: Policy, replicas: list[SimulatedReplica], num_gateways: int) -> None:
        self._policy = policy
        self._num_gateways = num_gateways
        self._replicas = replicas
        self._own = [0] * len(replicas)
        self._own_at_report = [0] * len(replicas)
        self._reports: list[tuple[int, int, float]] = [(0, 0, 0.0)] * len(replicas)

    def hear(self) -> None:
        """Read every replica's load."""
        self._reports = [(len(r.waiting), len(r.running), r.cache.usage) for r in self._replicas]
        self._own_at_report = list(self._own)

    def send(self, prompt: Prompt, on_end: Callable[[Job], None]) -> None:
        """Choose a replica and send the prompt there."""
        views = [
            View(own, *report, own - before, self._num_gateways)
            for own, report, before in zip(self._own, self._reports, self._own_at_report, strict=True)
        ]
        chosen = self._policy.choose(prompt, views)
        self._own[chosen] += 1

        def end(job: Job) -> None:
            self._own[chosen] -= 1
            on_end(job)

        self._replicas[chosen].submit(prompt, end)


class Run:
    """One simulation."""

    def __init__(
        self,
        chats: Chats,
        load: Load,
        open_policy: Open,
        *,
        seed: int,
        num_gateways: int,
        num_replicas: int = 4,
    ) -> None:
        self._agenda = Agenda()
        self._load = load
        self._writer = Writer(chats, seed)
        self._rng = random.Random(seed)  # noqa: S311  a simulation
        self._replicas = [SimulatedReplica(self._agenda, HARDWARE) for _ in range(num_replicas)]
        self._gateways = [Gateway(open_policy(), self._replicas, num_gateways) for _ in range(num_gateways)]
        self._jobs: list[Job] = []

    def run(self) -> Outcome:
        """Return what came of it."""
        agenda, load = self._agenda, self._load
        for number, gateway in enumerate(self._gateways):
            self._report(gateway, REPORT_SECONDS * number / len(self._gateways))
        if load.rate:
            for at, conversation in self._writer.arrive(load.rate, load.seconds):
                agenda.add(at, lambda conversation=conversation: self._ask(conversation))  # type: ignore[misc]
        for number in range(load.num_clients):
            agenda.add(number / load.num_clients, lambda: self._ask(self._writer.write()))
        agenda.run_until(WARM_SECONDS)
        before = self._read_loads()
        agenda.run_until(load.seconds)
        after = self._read_loads()
        return self._conclude([late - early for late, early in zip(after, before, strict=True)])

    def _report(self, gateway: Gateway, at: float) -> None:
        def hear() -> None:
            gateway.hear()
            self._report(gateway, self._agenda.now + REPORT_SECONDS)

        self._agenda.add(at, hear)

    def _ask(self, conversation: Conversation) -> None:
        prompt = conversation.ask()
        if prompt is not None:
            self._rng.choice(self._gateways).send(prompt, self._end)
        elif self._load.num_clients:
            self._ask(self._writer.write())

    def _end(self, job: Job) -> None:
        self._jobs.append(job)
        conversation = job.prompt.conversation
        pause = 0.0
        if not self._load.num_clients and conversation.num_asked < len(conversation.turns):
            pause = conversation.thinks[conversation.num_asked]
        self._agenda.add(self._agenda.now + pause, lambda: self._ask(conversation))

    def _read_loads(self) -> list[float]:
        for replica in self._replicas:
            replica.count_load()
        return [replica.load_seconds for replica in self._replicas]

    def _conclude(self, loads: list[float]) -> Outcome:
        jobs = [job for job in self._jobs if job.arrived_at >= WARM_SECONDS]
        ttfts = [job.first_token_at - job.arrived_at for job in jobs if job.first_token_at is not None]
        num_ended = sum(1 for job in self._jobs if job.ended_at >= WARM_SECONDS)
        return Outcome(
            mean_ttft=statistics.mean(ttfts),
            p95_ttft=percentile(ttfts, 95),
            requests_per_second=num_ended / (self._load.seconds - WARM_SECONDS),
            found_share=sum(job.num_found for job in jobs) / sum(job.prompt.num_tokens for job in jobs),
            highest_load=max(loads) / statistics.mean(loads),
        )
