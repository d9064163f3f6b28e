"""A gateway before real upstreams for each test."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from millrace_gateway.settings import Settings
from testing.gateway_bench import (
    BLOCK,
    NUMBERS,
    PODS,
    SERVICES,
    Bench,
    Handler,
    make_pod,
    make_service,
    next_address,
    running,
)

__all__ = [
    "BLOCK",
    "NUMBERS",
    "PODS",
    "SERVICES",
    "Bench",
    "Handler",
    "make_pod",
    "make_service",
    "next_address",
    "running",
]


@pytest_asyncio.fixture
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """A gateway with the fixture's own settings, or with others by `parametrize(…, indirect=True)`."""
    settings = Settings(
        "127.0.0.1", 0, own_namespace="millrace-system", drain_notice_seconds=0.05, drain_idle_seconds=0.05
    )
    async with running(replace(settings, **getattr(request, "param", {}))) as found:
        yield found


@pytest.fixture(autouse=True)
def no_tracebacks(caplog: pytest.LogCaptureFixture) -> Any:
    """No request, however it ends, logs a traceback."""
    yield
    records = [record for when in ("setup", "call") for record in caplog.get_records(when)]
    assert [r.getMessage() for r in records if r.exc_info or r.levelname == "ERROR"] == []
