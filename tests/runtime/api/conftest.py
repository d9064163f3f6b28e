import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop

from millrace_runtime.api.settings import ApiSettings
from testing.text_model import build_byte_level, write_model
from tests.runtime.api.served import Served, serve


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run asynchronous tests on the loop that a replica has; those of the protocol on Python's own too."""
    loops = {"uvloop": uvloop.new_event_loop}
    return loops | {"asyncio": asyncio.new_event_loop} if item.path.stem == "test_pipelining" else loops


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), build_byte_level())


@pytest.fixture(autouse=True)
def _forked_text(forked_text: None) -> None:
    """Those that chat/ and replica/ test are executed."""


@pytest.fixture
async def served(model_path: Path) -> AsyncIterator[Served]:
    async with serve(model_path, ApiSettings(served_name="tiny")) as served:
        yield served
