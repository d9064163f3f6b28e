"""The real Helm, Prometheus and promtool, built if they are not here yet."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from development.proxies import going_outside
from e2e.cluster.build import get_programs
from e2e.cluster.sources import PARTS

NEEDED = ("helm", "prometheus", "promtool")


@pytest.fixture(scope="session")
def programs() -> Mapping[str, Path]:
    with going_outside():
        return get_programs(parts=[part for part in PARTS if part.name in NEEDED])
