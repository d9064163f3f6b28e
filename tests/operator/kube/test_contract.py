"""The fake API server answers as the real one does; e2e/test_api_contract.py asks that one."""

import pytest

from millrace_operator.kube.connection import ApiServer
from millrace_operator.kube.fake import FakeCluster
from testing.api_contract import CASES, Case
from tests.operator.faulty.history import History
from tests.operator.faulty.running import serve
from tests.operator.faulty.server import FaultyServer
from tests.operator.kube.test_connection import FakeAccess


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_the_fake_one(case: Case) -> None:
    await case(FakeCluster(), "shop")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_the_fake_one_over_http(case: Case) -> None:
    async with (
        serve(FaultyServer(History())) as url,
        ApiServer(FakeAccess(url), seconds_to_write=lambda: 10.0) as cluster,  # type: ignore[arg-type]
    ):
        await case(cluster, "shop")
