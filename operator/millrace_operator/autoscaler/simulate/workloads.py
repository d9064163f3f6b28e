"""The loads of the comparison of autoscalers, with replicas and objectives that make them a fair task.

Replicas are made up: bandwidths and speeds of public data sheets, about halved, and sizes of public models.
The rates' peak needs about ten replicas, and the targets allow an idle replica the longest request.
Objectives are for 99 % of the requests, like the bar of the comparison.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from millrace_operator.autoscaler.decide.policy import Objective
from millrace_operator.autoscaler.simulate.hardware import Hardware
from millrace_operator.autoscaler.simulate.load import (
    DAY_SECONDS,
    Client,
    Clients,
    Lengths,
    Request,
    draw_requests,
    fixed_lengths,
    share_by_rank,
    step_rates,
)
from millrace_operator.autoscaler.simulate.prometheus import Scraping
from millrace_operator.autoscaler.simulate.run import Run, Scaler, Setting, Watched, simulate
from millrace_operator.autoscaler.simulate.traces import cut, read_file, scale

OUTAGE_SECONDS = 600.0
LOST_SHARE = 0.5
TRACE_SECONDS = 3400.0
"""Both of Azure's traces are a little longer."""
TRACE_FACTOR = 10


class Source(Protocol):
    """A source of requests."""

    def requests(self, seed: int) -> Iterator[Request]:
        """Yield them in order. Equal seeds give equal requests."""


@dataclass(frozen=True)
class Workload:
    """A load, and the service for it."""

    name: str
    source: Source
    seconds: float
    objectives: tuple[Objective, ...]
    hardware: Hardware
    min_replicas: int
    max_replicas: int
    initial_replicas: int
    """The need of the first minutes, so that no rule begins with a queue."""
    peak_at: float
    """The time at which an outage hurts most."""
    on_tick: Callable[[float], None] | None = None
    """Called with the virtual time at each decision: requests may be days apart, decisions are not."""

    def requests(self, seed: int) -> Iterator[Request]:
        """Yield the requests in order."""
        return self.source.requests(seed)

    def setting(
        self, seed: int, scraping: Scraping | None = None, cold_start: float | None = None
    ) -> Setting:
        """Return the setting of a simulation. `cold_start` is in seconds; None: as its replicas have it."""
        seconds = self.hardware.cold_start_seconds if cold_start is None else cold_start
        hardware = replace(self.hardware, cold_start_seconds=seconds)
        return Setting(hardware, self.objectives, scraping or Scraping(), self.initial_replicas, seed)

    def play(self, setting: Setting, scaler: Scaler) -> Run:
        """Simulate it with a scaler."""
        watched = scaler if self.on_tick is None else Watched(scaler, self.on_tick)
        return simulate(setting, watched, self.requests(setting.seed), self.seconds)


@dataclass(frozen=True)
class Outage:
    """A time in which Prometheus is down."""

    begin: float
    seconds: float = OUTAGE_SECONDS

    def __call__(self, at: float) -> bool:
        """Whether it is down."""
        return self.begin <= at < self.begin + self.seconds


def list_faults(workload: Workload) -> dict[str, Scraping]:
    """Return faults of a Prometheus by name: down for ten minutes at the peak, half of the scrapes lost."""
    return {
        "outage": Scraping(is_down=Outage(workload.peak_at - OUTAGE_SECONDS / 2)),
        "loss": Scraping(lost_share=LOST_SHARE),
    }


@dataclass(frozen=True)
class Ramp:
    """Poisson arrivals of a rate that is constant for minutes."""

    rates: tuple[float, ...]
    lasting: tuple[float, ...]
    lengths: Lengths

    def requests(self, seed: int) -> Iterator[Request]:
        """Yield the requests in order."""
        rate_at, seconds = step_rates(self.rates, self.lasting), sum(self.lasting)
        return draw_requests(rate_at, max(self.rates), seconds, self.lengths, seed)


@dataclass(frozen=True)
class Recorded:
    """A part of a trace, scaled."""

    path: Path
    begin: float
    end: float
    factor: int = TRACE_FACTOR

    def requests(self, seed: int) -> Iterator[Request]:
        """Yield the requests in order. The seed moves copies by seconds."""
        recorded = cut(read_file(self.path), self.begin, self.end)
        return cut(scale(recorded, self.factor, seed), 0.0, self.end - self.begin)


def _objectives(first_token: float, output_token: float) -> tuple[Objective, ...]:
    return (
        Objective("TimeToFirstToken", 99, first_token),
        Objective("TimePerOutputToken", 99, output_token),
    )


RAMP_HARDWARE = Hardware(0.004, 0.022, 4e-5, 3e-8, kv_tokens=400_000, cold_start_seconds=100.0)
"""32 billion parameters on two large devices: 64 GB are read at 3 TB/s."""
TRACE_HARDWARE = Hardware(0.004, 0.0095, 5.6e-5, 6e-8, kv_tokens=280_000, cold_start_seconds=120.0)
"""14 billion parameters on one large device: 28 GB are read at 3 TB/s."""
DAY_HARDWARE = Hardware(
    overhead_seconds=0.004,
    weights_seconds=0.037,
    token_seconds=2.1e-4,
    context_seconds=3.2e-7,
    max_batched_tokens=2048,
    kv_tokens=50_000,
    cold_start_seconds=120.0,
)
"""32 billion parameters of 8 bits on one device with 48 GB, of which 13 are left for KV."""


def ramp() -> Workload:
    """W1, the ramp of llm-d's SLO-aware guide, with its rates, lengths, bounds and targets."""
    rates, lasting = (2.0, 4.0, 6.0, 8.0, 10.0, 4.0, 1.0), (330.0, 360.0, 360.0, 360.0, 360.0, 360.0, 300.0)
    source = Ramp(rates, lasting, fixed_lengths(4000, 1000))
    return Workload(
        name="W1",
        source=source,
        seconds=sum(lasting),
        objectives=_objectives(3.0, 0.1),
        hardware=RAMP_HARDWARE,
        min_replicas=3,
        max_replicas=8,
        initial_replicas=3,
        peak_at=1590.0,
    )


def conversation(folder: Path, begin: float = 0.0, end: float = TRACE_SECONDS) -> Workload:
    """W2, Azure's conversation trace of 2023, ten times: 55 requests a second, 75 at the peak."""
    source = Recorded(folder / "AzureLLMInferenceTrace_conv.csv", begin, end)
    initial = 8 if begin < TRACE_SECONDS / 4 else 12
    return _recorded("W2", source, trace_peak=1800.0, max_replicas=30, initial_replicas=initial)


def code(folder: Path, begin: float = 0.0, end: float = TRACE_SECONDS) -> Workload:
    """W3, Azure's code trace of 2023, ten times: 26 requests a second, 370 in the worst 10 s."""
    source = Recorded(folder / "AzureLLMInferenceTrace_code.csv", begin, end)
    return _recorded("W3", source, trace_peak=1350.0, max_replicas=40, initial_replicas=6)


def _recorded(
    name: str, source: Recorded, *, trace_peak: float, max_replicas: int, initial_replicas: int
) -> Workload:
    seconds, margin = source.end - source.begin, OUTAGE_SECONDS / 2
    peak_at = max(min(trace_peak - source.begin, seconds - margin), margin)
    objectives = _objectives(1.0, 0.05)
    return Workload(
        name=name,
        source=source,
        seconds=seconds,
        objectives=objectives,
        hardware=TRACE_HARDWARE,
        min_replicas=1,
        max_replicas=max_replicas,
        initial_replicas=initial_replicas,
        peak_at=peak_at,
    )


@dataclass(frozen=True)
class _Day:
    """The figures of a service whose clients have a day. Clients take the values of the lists in turn."""

    num_clients: int
    steepness: float
    variations: tuple[float, ...]
    prompt_tokens: tuple[int, ...]
    """Medians."""
    generation_tokens: tuple[int, ...]
    requests_per_second: float

    def source(self, days: int, wobble: float) -> Clients:
        """Return its clients over some days."""
        shares = share_by_rank(self.num_clients, self.steepness)
        clients = tuple(self._client(rank, share) for rank, share in enumerate(shares))
        return Clients(clients, self.requests_per_second, days * DAY_SECONDS, wobble=wobble)

    def _client(self, rank: int, share: float) -> Client:
        def pick(values: tuple[float, ...]) -> float:
            return values[rank % len(values)]

        prompt, generation = math.log(pick(self.prompt_tokens)), math.log(pick(self.generation_tokens))
        late = (rank % 3 - 1) * 3600.0
        return Client(share, pick(self.variations), late, Lengths(prompt, 0.8, generation, 0.6, 12_000))


_SMALL = _Day(
    num_clients=8,
    steepness=0.66,
    variations=(2.0, 3.0, 1.5, 4.0, 2.5, 1.0, 6.0, 2.0),
    prompt_tokens=(500, 1200, 300, 900),
    generation_tokens=(1800, 2600, 1500),
    requests_per_second=0.65,
)
"""Eight clients with long answers. Their gaps vary by 2.5 on average; the top five carry 77 %."""
_LARGE = _Day(
    num_clients=20,
    steepness=0.51,
    variations=(2.0, 3.5, 1.5, 5.0, 2.5, 8.0, 2.0),
    prompt_tokens=(800, 1500, 400, 2000, 600),
    generation_tokens=(500, 800, 350),
    requests_per_second=2.7,
)
"""Twenty clients. Their gaps vary by 3.2 on average; the top five carry 43 %."""


def small_day() -> Workload:
    """W4, a day of eight clients with long answers: two requests in three seconds."""
    return _day("W4", _SMALL)


def large_day() -> Workload:
    """W5, a day of twenty clients: eight requests in three seconds."""
    return _day("W5", _LARGE)


def week() -> Workload:
    """W6, a week of W4's clients, whose days differ more from each other."""
    return _day("W6", _SMALL, days=7, wobble=0.16)


def _day(name: str, day: _Day, days: int = 1, wobble: float = 0.08) -> Workload:
    source = day.source(days, wobble)
    return Workload(
        name=name,
        source=source,
        seconds=source.seconds,
        objectives=_objectives(4.0, 0.1),
        hardware=DAY_HARDWARE,
        min_replicas=1,
        max_replicas=30,
        initial_replicas=6,
        peak_at=source.peak_at,
    )
