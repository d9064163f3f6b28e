import asyncio
from collections.abc import Iterator

import pytest

from tests.runtime.forkserver import LIBRARIES, REPLICA, TEXT, Forkserver


@pytest.fixture(scope="session")
def forkserver() -> Iterator[Forkserver]:
    with Forkserver(REPLICA, LIBRARIES) as server:
        yield server


@pytest.fixture(scope="session")
def text_forkserver() -> Iterator[Forkserver]:
    with Forkserver(TEXT) as server:
        yield server


@pytest.fixture
def forked_text(text_forkserver: Forkserver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text workers are forked."""
    monkeypatch.setattr(asyncio, "create_subprocess_exec", text_forkserver.spawn)
