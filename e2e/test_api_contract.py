"""The real API server answers as the operator relies on, and as the fake one does that other tests ask."""

import pytest

from e2e.cluster.local_cluster import LocalCluster
from millrace_operator.kube.connection import ApiServer
from millrace_operator.kube.credentials import load_access
from testing.api_contract import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_the_real_one(
    cluster: LocalCluster, namespace: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.layout.kubeconfig))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    async with ApiServer(await load_access(), seconds_to_write=lambda: 10.0) as api:
        await case(api, namespace)
