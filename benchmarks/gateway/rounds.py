"""One gateway's turn in a round: each figure measured, with a new process of the gateway."""

import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gateway.clients import Clients, LoadError, Target
from benchmarks.gateway.contestants import Contestant, PeerError, Place, Started
from benchmarks.gateway.process import Process

START_SECONDS = 90.0
CARRIED_LAG_MS = 25.0
"""Streams are carried while 99 of 100 tokens are late by less: half of the time between two."""
NUM_IDLE = 1000
SETTLE_SECONDS = 1.0


@dataclass(frozen=True)
class Plan:
    """How long and how much."""

    seconds: float = 4.0
    latency_seconds: float = 6.0
    connections: int = 64
    rate: int = 200
    num_streams: int = 1000
    steps: tuple[int, ...] = (1500, 2500, 3500, 4500)
    """Numbers of streams that are tried one after the other, until one is not carried."""


Figures = dict[str, float]


def measure(contestant: Contestant, place: Place, clients: Clients, plan: Plan, direct: Target) -> Figures:
    """Return a contestant's figures. Raises PeerError and LoadError."""
    figures: Figures = {}
    with contestant.serve(place) as started:
        if started is None:
            return _measure_path(clients, direct, plan, None)
        _await_answer(contestant.name, started, clients, place.folder)
        time.sleep(SETTLE_SECONDS)
        figures["idle_mb"] = started.process.read_resident_bytes() / 1e6
        figures |= _measure_idle_streams(clients, started)
    # Anew: LiteLLM keeps its places for streams whose clients have left, and answers nobody else.
    with contestant.serve(place) as started:
        assert started is not None
        _await_answer(contestant.name, started, clients, place.folder)
        return figures | _measure_path(clients, started.target, plan, started.process)


def _measure_path(clients: Clients, target: Target, plan: Plan, process: Process | None) -> Figures:
    rate = clients.measure("rate", target, connections=plan.connections, duration=f"{plan.seconds}s")
    if rate["failed"]:
        raise LoadError(f"{rate['failed']} requests failed")
    latency = clients.measure(
        "latency", target, connections=32, rate=plan.rate, duration=f"{plan.latency_seconds}s"
    )
    figures = {
        "requests_per_second": rate["requests_per_second"],
        "latency_p50_ms": latency["milliseconds"]["p50"],
        "latency_p99_ms": latency["milliseconds"]["p99"],
    }
    return figures | _measure_streams(clients, target, plan, process)


def _measure_streams(clients: Clients, target: Target, plan: Plan, process: Process | None) -> Figures:
    first = _carry(clients, target, plan.num_streams, plan, process)
    if first is None:
        return {"streams_carried": 0.0}
    figures = {
        "streams_lag_p50_ms": first.lag_p50_ms,
        "streams_lag_p99_ms": first.lag_p99_ms,
        "streams_cpu_percent": first.cpu_percent,
        "streams_carried": float(plan.num_streams if first.is_carried else 0),
    }
    for number in plan.steps if first.is_carried else ():
        carried = _carry(clients, target, number, plan, process)
        if carried is None or not carried.is_carried:
            break
        figures["streams_carried"] = float(number)
    return figures


@dataclass(frozen=True)
class _Carried:
    lag_p50_ms: float
    lag_p99_ms: float
    delivered: float
    cpu_percent: float

    @property
    def is_carried(self) -> bool:
        return self.lag_p99_ms <= CARRIED_LAG_MS and self.delivered >= 0.98


def _carry(
    clients: Clients, target: Target, number: int, plan: Plan, process: Process | None
) -> _Carried | None:
    """Return how so many streams are carried; None if less than half of them begin."""
    with clients.begin("streams", target, connections=number, duration=f"{plan.seconds}s") as load:
        if load.read_line() != "measuring":
            raise LoadError("the streams did not begin")
        before = process.read_cpu_seconds() if process else 0.0
        began = time.monotonic()
        result = clients.read(load)
        if result["begun"] < number / 2:
            return None
        share = ((process.read_cpu_seconds() if process else 0.0) - before) / (time.monotonic() - began)
    lag = {"p50": float("inf"), "p99": float("inf")} | result["milliseconds"]
    return _Carried(lag["p50"], lag["p99"], result["delivered"], 100 * share)


def _measure_idle_streams(clients: Clients, started: Started) -> Figures:
    before = started.process.read_resident_bytes()
    with clients.begin("idle", started.target, connections=NUM_IDLE) as load:
        opened = int(load.read_line().removeprefix("open ") or 0)
        if not opened:
            raise LoadError("no stream began")
        time.sleep(SETTLE_SECONDS)
        taken = started.process.read_resident_bytes() - before
    return {"idle_stream_kb": taken / 1e3 / opened}


def _await_answer(name: str, started: Started, clients: Clients, folder: Path) -> None:
    """Wait until the gateway answers a request. Raises PeerError."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and not started.process.has_ended():
        found = clients.measure("complete", started.target, total=1, connections=1, stream=False)
        if found["complete"]:
            return
        time.sleep(0.2)
    raise PeerError(f"it does not answer: see {folder / name}.log")
