"""The real Helm, Prometheus and promtool, built if they are not here yet."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from development.proxies import going_outside
from e2e.cluster.build import get_programs
from e2e.cluster.sources import PARTS
from tests.monitoring.incidents import Check, Firing, Incident, Series, check

NEEDED = ("helm", "prometheus", "promtool")
LONG_MINUTES = 180
"""Those that last longer are evaluated apart: the others would be, too, until the last one has ended."""
SEVERITIES = {"over": ".+", "pages": "page"}
"""By the fixture that checks them, as a regular expression."""


@pytest.fixture(scope="session")
def programs() -> Mapping[str, Path]:
    with going_outside():
        return get_programs(parts=[part for part in PARTS if part.name in NEEDED])


@pytest.fixture(scope="module")
def held(
    request: pytest.FixtureRequest, programs: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Sequence[Incident]:
    """Return the incidents of this module's tests that may happen beside each other, if all of them hold.

    They are evaluated at once, as a step of all rules costs as much for one service as for ten. Where one
    does not hold, none is returned: then each is evaluated alone, and says itself what is wrong.
    """
    tests = [item for item in request.session.items if item.getparent(pytest.Module) is request.node]
    found = [incident for test in tests for incident in list_incidents(test)]
    beside = [incident for incident in found if incident.may_have_others_beside_it]
    folder, promtool = tmp_path_factory.mktemp("incidents"), programs["promtool"]
    lengths = [
        [one for one in beside if (one.minutes > LONG_MINUTES) is is_long] for is_long in (False, True)
    ]
    return [one for some in lengths if some and not check_together(promtool, folder, some) for one in some]


def check_together(promtool: Path, folder: Path, incidents: Sequence[Incident]) -> str:
    """Return what promtool says against incidents, each in namespaces of its own."""
    return check(promtool, folder, [incident.move(number) for number, incident in enumerate(incidents)])


def list_incidents(test: pytest.Item) -> Sequence[Incident]:
    """Return what a test would have evaluated."""
    found: list[Incident] = []

    def note(series: Sequence[Series], firing: Firing, severity: str) -> None:
        found.append(Incident(series, firing, severity))

    assert isinstance(test, pytest.Function)
    asked = {
        name: partial(note, severity=severity)
        for name, severity in SEVERITIES.items()
        if name in test.fixturenames
    }
    if asked:
        test.obj(**asked, **(test.callspec.params if hasattr(test, "callspec") else {}))
    return found


@pytest.fixture
def over(held: Sequence[Incident], programs: Mapping[str, Path], tmp_path: Path) -> Check:
    """Check all that fires over these series, at these minutes."""
    return make_check(held, programs["promtool"], tmp_path, SEVERITIES["over"])


@pytest.fixture
def pages(held: Sequence[Incident], programs: Mapping[str, Path], tmp_path: Path) -> Check:
    """Check who is paged. Tickets are left aside: of three days only two hours are known here."""
    return make_check(held, programs["promtool"], tmp_path, SEVERITIES["pages"])


def make_check(held: Sequence[Incident], promtool: Path, folder: Path, severity: str) -> Check:
    def check_one(series: Sequence[Series], firing: Firing) -> None:
        incident = Incident(series, firing, severity)
        if incident not in held:
            said = check(promtool, folder, [incident])
            assert not said, said

    return check_one
