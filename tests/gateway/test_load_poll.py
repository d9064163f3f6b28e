"""The task that asks replicas for their load."""

import pytest

from millrace_gateway.front import load_poll
from testing.gateway_bench import Bench
from testing.polling import wait_until_async


async def test_a_fault_of_one_poll_is_logged_and_ends_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    polls = 0

    def poll(_now: float) -> tuple[()]:
        nonlocal polls
        polls += 1
        if polls == 1:
            raise KeyError("p1")
        return ()

    monkeypatch.setattr(load_poll, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(bench.gateway.balancer, "polls_due", poll)
    await wait_until_async("another poll", lambda: polls > 2)
    (record,) = [one for one in caplog.records if one.levelname == "ERROR"]
    assert record.exc_info is not None
    caplog.clear()
