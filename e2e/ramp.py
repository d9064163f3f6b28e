"""A ramp of load to a multiple of one replica's capacity, and how soon the objective is met again."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from e2e.service import Service
from testing.traffic import Load, Phase, Stream, check_size, ttft_percentile

MAX_TOKENS = 32
OBJECTIVE_SECONDS = 2.0
PEAK = 3.0
RAMP_SHARES = (0.5, 1.0, 2.0)
RAMP_STEP_SECONDS = 5.0
WINDOW_SECONDS = 5.0


@dataclass(frozen=True)
class Replica:
    """One replica alone: from apply to Ready, and the requests it completes in a second."""

    cold_start_seconds: float
    requests_per_second: float

    @property
    def recovery_bound_seconds(self) -> float:
        """The time within which the objective must be met again at the peak."""
        return 2 * self.cold_start_seconds + 30


@dataclass(frozen=True)
class Ramp:
    """A ramp under way: its streams so far, and when (seconds since it began) the peak begins."""

    load: Load
    peak_at: float

    @property
    def streams(self) -> list[Stream]:
        """Every stream so far."""
        return self.load.streams

    def wait_until(self, seconds_of_peak: float) -> None:
        """Sleep until so many seconds after the peak began."""
        time.sleep(max(0.0, self.load.began + self.peak_at + seconds_of_peak - time.monotonic()))

    def lost_streams(self) -> list[Stream]:
        """Return the streams that did not bring all that they asked for, refused ones too."""
        return [stream for stream in self.streams if stream.is_truncated or stream.is_refused]

    def is_within_objective(self, seconds: float) -> bool:
        """Whether P95 TTFT is, of the last so many seconds' streams whose first token is due by now."""
        until = time.monotonic() - self.load.began - OBJECTIVE_SECONDS
        return ttft_percentile(self.streams, 95, since=until - seconds, until=until) <= OBJECTIVE_SECONDS

    def recovery_seconds(self, peak_seconds: float) -> float:
        """Return how long after the peak began P95 TTFT was within the objective for good."""
        late = 0.0
        for number in range(int(peak_seconds // WINDOW_SECONDS)):
            begin = self.peak_at + number * WINDOW_SECONDS
            value = ttft_percentile(self.streams, 95, since=begin, until=begin + WINDOW_SECONDS)
            if not value <= OBJECTIVE_SECONDS:  # a window without a stream is no proof
                late = (number + 1) * WINDOW_SECONDS
        return late


def start_alone(service: Service) -> Replica:
    """Apply a service of small replicas, one at first, and measure that one."""
    service.spec["resources"]["limits"]["cpu"] = "300m"
    service.spec["scaling"] |= {"minReplicas": 1, "maxReplicas": 5}
    began = time.monotonic()
    service.apply()
    service.wait_ready()
    return Replica(time.monotonic() - began, measure_capacity(service))


def measure_capacity(service: Service) -> float:
    """Return the requests a second that one replica completes when more are always waiting."""
    load = Load(service.target(max_tokens=MAX_TOKENS))
    streams = asyncio.run(load.run([Phase(2.0, 30.0)], seed=1))
    ends = sorted(s.ended for s in streams if s.ended is not None and s.finish_reason)
    assert len(ends) == len(streams), "a stream was lost while one replica was measured"
    return len(ends) / (ends[-1] - streams[0].sent)


@contextmanager
def ramp_beside(service: Service, alone: Replica, peak_seconds: float) -> Iterator[Ramp]:
    """Send the ramp from another thread until the block ends; every stream has ended after it."""
    load = Load(service.target(max_tokens=MAX_TOKENS))
    rates = [alone.requests_per_second * share for share in RAMP_SHARES]
    phases = [Phase(RAMP_STEP_SECONDS, rate) for rate in rates]
    phases.append(Phase(peak_seconds, PEAK * alone.requests_per_second))
    check_size(phases)
    thread = threading.Thread(target=lambda: asyncio.run(load.run(phases)))
    thread.start()
    try:
        yield Ramp(load, RAMP_STEP_SECONDS * len(RAMP_SHARES))
    finally:
        load.end()
        thread.join()


def desired_replicas(service: Service) -> int:
    """Return the count that status shows as decided."""
    return int(service.status().get("scaling", {}).get("desiredReplicas", 0))
