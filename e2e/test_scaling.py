"""Replicas follow the load: an open-loop ramp to three times one replica's capacity, and back."""

import asyncio
import logging
import threading
import time
from dataclasses import dataclass

from e2e.service import Service
from e2e.traffic import Load, Phase, Stream, ttft_percentile

LOG = logging.getLogger(__name__)
MAX_TOKENS = 32
OBJECTIVE_SECONDS = 2.0
STEADY_SECONDS = 25.0  # what is judged after the time to recover, and again while Prometheus is away


@dataclass(frozen=True)
class Measured:
    """One replica, alone."""

    cold_start_seconds: float
    requests_per_second: float


def test_replicas_rise_with_the_load_hold_without_signals_and_go_back(service: Service) -> None:
    service.spec["resources"]["limits"]["cpu"] = "300m"
    service.spec["scaling"] |= {"minReplicas": 1, "maxReplicas": 5}
    began = time.monotonic()
    service.apply()
    service.wait_ready()
    alone = Measured(time.monotonic() - began, measure_capacity(service))
    recovery_seconds = 2 * alone.cold_start_seconds + 30
    peak_seconds = recovery_seconds + 2 * STEADY_SECONDS + 30
    load = Load(service.target(max_tokens=MAX_TOKENS))
    ramp = [Phase(5, alone.requests_per_second * share) for share in (0.5, 1.0, 2.0)]
    phases = [*ramp, Phase(peak_seconds, 3 * alone.requests_per_second)]
    thread = threading.Thread(target=lambda: asyncio.run(load.run(phases)))
    thread.start()
    try:
        at_peak = load.began + sum(phase.seconds for phase in ramp)
        risen = service.wait_for("rising", lambda: desired(service) >= 3, recovery_seconds)
        LOG.info("%s; three replicas after %.1f s: %s", alone, risen, scaling_message(service))
        sleep_until(at_peak + recovery_seconds + STEADY_SECONDS)
        check_held_without_prometheus(service)
    finally:
        thread.join()
    check_streams(load.streams, at_peak - load.began + recovery_seconds)
    service.wait_for("back at its minimum", lambda: desired(service) == 1, 240)
    service.wait_for("rid of the others", lambda: len(service.pods()) == 1, 60)


def measure_capacity(service: Service) -> float:
    """Return the requests a second that one replica completes when more are always waiting."""
    load = Load(service.target(max_tokens=MAX_TOKENS))
    num_requests, rate = 60, 30.0
    streams = asyncio.run(load.run([Phase(num_requests / rate, rate)], seed=1))
    ends = sorted(s.ended for s in streams if s.ended is not None and s.finish_reason)
    assert len(ends) == len(streams), "a stream was lost while one replica was measured"
    return len(ends) / (ends[-1] - streams[0].sent)


def check_held_without_prometheus(service: Service) -> None:
    """Prometheus dies at the peak: the count is held, the condition says so; then it comes back."""
    before = desired(service)
    service.cluster.kill_part("prometheus")
    try:
        service.wait_for(
            "saying that signals are missing",
            lambda: service.condition("ScalingActive").get("reason") == "SignalsMissing",
            30,
        )
        assert desired(service) >= before
    finally:
        service.cluster.start_part("prometheus")
    service.wait_for("resumed", lambda: service.condition("ScalingActive")["status"] == "True", 60)
    assert desired(service) >= before


def check_streams(streams: list[Stream], recovered_at: float) -> None:
    """Every stream ended with its finish reason, and those sent after the recovery began in time."""
    lost = [s for s in streams if s.is_truncated or s.is_refused]
    assert not lost, f"{len(lost)} of {len(streams)}: {lost[:3]}"
    late = ttft_percentile(streams, 95, since=recovered_at, until=recovered_at + STEADY_SECONDS)
    LOG.info("%d streams; P95 TTFT after recovery %.2f s", len(streams), late)
    assert late <= OBJECTIVE_SECONDS


def desired(service: Service) -> int:
    return int(service.status().get("scaling", {}).get("desiredReplicas", 0))


def scaling_message(service: Service) -> str:
    return str(service.status()["scaling"]["message"])


def sleep_until(when: float) -> None:
    time.sleep(max(0.0, when - time.monotonic()))
