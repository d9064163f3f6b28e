"""Volumes for claims, where the API server fails or a claim goes while no node process runs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.nodes.claims import ClaimProvisioner
from millrace_kubernetes.errors import make_api_error
from testing.polling import wait_until_async

pytestmark = pytest.mark.reads("e2e/cluster", "testing/polling.py", "operator/millrace_kubernetes")

Object = dict[str, Any]
CLAIM: Object = {
    "metadata": {"uid": "u1", "name": "data", "namespace": "prod"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    "status": {"phase": "Pending"},
}
BOUND: Object = {**CLAIM, "metadata": {**CLAIM["metadata"], "uid": "u2"}, "status": {"phase": "Bound"}}


class Volumes:
    """The API server's volumes by name; it answers its next requests as `failures` say."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.failures: list[Exception] = []
        self.num_requests = 0

    async def create(self, _: str, body: Object) -> Object:
        self._count()
        self.names.add(body["metadata"]["name"])
        return body

    async def delete(self, path: str) -> Object:
        self._count()
        name = path.rpartition("/")[2]
        if name not in self.names:
            raise make_api_error(HTTPStatus.NOT_FOUND, "no such volume")
        self.names.remove(name)
        return {}

    def _count(self) -> None:
        self.num_requests += 1
        if self.failures:
            raise self.failures.pop(0)


@pytest.fixture
def volumes(monkeypatch: pytest.MonkeyPatch) -> Volumes:
    monkeypatch.setattr("e2e.cluster.nodes.claims.RETRY_SECONDS", 0.01)
    return Volumes()


@contextlib.asynccontextmanager
async def provisioning(volumes: Volumes, folder: Path) -> AsyncIterator[ClaimProvisioner]:
    provisioner = ClaimProvisioner(volumes, folder)  # type: ignore[arg-type]
    task = asyncio.create_task(provisioner.run())
    yield provisioner
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_volume_that_could_not_be_made_is_tried_again(
    volumes: Volumes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    volumes.failures = [make_api_error(500, "etcd is away"), TimeoutError()]
    async with provisioning(volumes, tmp_path) as provisioner:
        provisioner.note_change(None, CLAIM)
        await wait_until_async("the volume", lambda: volumes.names == {"pvc-u1"})
    assert [record.getMessage() for record in caplog.records] == [
        "volume pvc-u1 of claim prod/data: the API server answered 500: etcd is away",
        "volume pvc-u1 of claim prod/data: TimeoutError()",
    ]


@pytest.mark.parametrize("status", [HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT])
async def test_a_volume_that_another_made_is_let_be(volumes: Volumes, tmp_path: Path, status: int) -> None:
    volumes.failures = [make_api_error(status, "settled")]
    async with provisioning(volumes, tmp_path) as provisioner:
        provisioner.note_change(None, CLAIM)
        await asyncio.sleep(0.1)
    assert volumes.num_requests == 1


async def test_a_claim_that_goes_while_its_volume_fails_leaves_nothing(
    volumes: Volumes, tmp_path: Path
) -> None:
    volumes.failures = [make_api_error(500, "etcd is away") for _ in range(1000)]
    async with provisioning(volumes, tmp_path) as provisioner:
        provisioner.note_change(None, CLAIM)
        await wait_until_async("the failure", lambda: volumes.num_requests)
        volumes.failures.clear()
        provisioner.note_change(CLAIM, None)
        await wait_until_async("the removal", lambda: not list(tmp_path.iterdir()))
        await asyncio.sleep(0.1)
        assert not list(tmp_path.iterdir())  # noqa: ASYNC240  one local call
    assert not volumes.names


async def test_what_claims_left_while_no_node_process_ran_is_removed(
    volumes: Volumes, tmp_path: Path
) -> None:
    volumes.names = {"pvc-gone", "pvc-u2"}
    for name in ("pvc-gone", "pvc-volume-gone-too", "pvc-u2"):
        (tmp_path / name).mkdir()
    async with provisioning(volumes, tmp_path) as provisioner:
        provisioner.note_change(None, BOUND)
        provisioner.sweep()
        await wait_until_async("the folders", lambda: len(list(tmp_path.iterdir())) == 1)
    assert volumes.names == {"pvc-u2"}
    assert (tmp_path / "pvc-u2").exists()
