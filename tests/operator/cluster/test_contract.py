"""The fake API server answers as the real one does; e2e/test_api_contract.py asks that one."""

import pytest

from millrace_operator.cluster.fake import FakeCluster
from tests.operator.cluster.contract import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_the_fake_one(case: Case) -> None:
    await case(FakeCluster(), "shop")
