"""Replicas follow the load: an open-loop ramp to three times one replica's capacity, and back."""

import asyncio
import logging
from functools import partial

import pytest

from e2e.ramp import PEAK, desired_replicas, ramp_beside, start_alone
from e2e.service import Service

LOG = logging.getLogger(__name__)
STEADY_SECONDS = 25.0  # within the objective for so long
MET_SECONDS = 150.0  # until the objective is met again; benchmarks/path measures how soon it is
CONDITION_SECONDS = 75.0  # a condition that changes alone is written once a minute at most


@pytest.mark.alone
@pytest.mark.parametrize("goes_back", [False, pytest.param(True, marks=pytest.mark.long)])
def test_replicas_rise_with_the_load_hold_without_signals_and_go_back(
    service: Service,
    goes_back: bool,  # noqa: FBT001
) -> None:
    """The way back takes minutes; tests/operator/autoscaler/decide/test_replay.py goes it in virtual time."""
    alone = start_alone(service)
    recovery_seconds = alone.recovery_bound_seconds
    assert service.diff() == ""
    with ramp_beside(service, alone, recovery_seconds + 2 * (CONDITION_SECONDS + MET_SECONDS)) as ramp:
        service.wait_for("rising", lambda: desired_replicas(service) >= 3, recovery_seconds)
        LOG.info("%s; %s", alone, service.status()["scaling"]["message"])
        in_time = partial(ramp.is_within_objective, STEADY_SECONDS)
        service.wait_for("in time", in_time, MET_SECONDS)
        check_held_without_prometheus(service)
        service.wait_for("in time again", in_time, MET_SECONDS)
    assert service.diff() == ""
    assert ramp.lost_streams() == []
    assert asyncio.run(ramp.load.find_altered(8)) == []
    LOG.info("%d streams", len(ramp.streams))
    if goes_back:
        service.wait_for("back at its minimum", lambda: desired_replicas(service) == 1, 240)
        service.wait_for("rid of the others", lambda: len(service.pods()) == 1, 60)
        assert service.diff() == ""


def check_held_without_prometheus(service: Service) -> None:
    """Prometheus dies at the peak: the count is held, the condition says so; then it comes back.

    After that the count is at least what the load needs, of which a replica carries a third.
    """
    before = desired_replicas(service)
    service.cluster.kill_part("prometheus")
    try:
        service.wait_for(
            "saying that signals are missing",
            lambda: service.condition("ScalingActive").get("reason") == "SignalsMissing",
            CONDITION_SECONDS,
        )
        assert desired_replicas(service) >= before
    finally:
        service.cluster.start_part("prometheus")
    service.wait_for("resumed", lambda: service.condition("ScalingActive")["status"] == "True", 60)
    # Not `before`: on a slow machine the three minutes are over for which the first, larger count is kept.
    assert desired_replicas(service) >= PEAK
