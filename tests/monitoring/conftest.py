"""The real Helm, Prometheus and promtool, built if they are not here yet."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from development.proxies import going_outside
from e2e.cluster.build import get_programs
from e2e.cluster.sources import PARTS
from tests.monitoring.incidents import Check, check

NEEDED = ("helm", "prometheus", "promtool")


@pytest.fixture(scope="session")
def programs() -> Mapping[str, Path]:
    with going_outside():
        return get_programs(parts=[part for part in PARTS if part.name in NEEDED])


@pytest.fixture
def over(programs: Mapping[str, Path], tmp_path: Path) -> Check:
    """Check all that fires over these series, at these minutes."""
    return lambda series, firing: check(programs["promtool"], tmp_path, series, firing)


@pytest.fixture
def pages(programs: Mapping[str, Path], tmp_path: Path) -> Check:
    """Check who is paged. Tickets are left aside: of three days only two hours are known here."""
    return lambda series, firing: check(programs["promtool"], tmp_path, series, firing, "page")
