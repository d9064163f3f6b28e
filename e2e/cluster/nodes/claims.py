"""Gives each claim without a storage class a folder of this machine, as a volume of its own.

Two node processes may both try: the volume's name follows from the claim's uid, so the later one
is answered with a conflict (409), and lets the first one's be.
"""

import asyncio
import logging
import shutil
from collections.abc import Awaitable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp

from e2e.cluster.nodes.kube import KubeClient
from millrace_kubernetes.errors import ApiError

Object = dict[str, Any]
log = logging.getLogger(__name__)
RETRY_SECONDS = 5.0
"""After which a volume that could not be made or removed is tried again."""
PROVISIONER = "millrace.dev/process-node"


def needs_volume(claim: Object) -> bool:
    """Return whether a claim waits for a volume that no storage class provides."""
    spec = claim["spec"]
    is_free = not spec.get("volumeName") and not spec.get("storageClassName") and not spec.get("selector")
    return is_free and claim.get("status", {}).get("phase", "Pending") == "Pending"


def volume_name(claim: Object) -> str:
    """Return the name of the volume made for a claim."""
    return f"pvc-{claim['metadata']['uid']}"


def render_volume(claim: Object, folder: Path) -> Object:
    """Return a hostPath volume for exactly this claim."""
    metadata = claim["metadata"]
    reference = {key: metadata[key] for key in ("name", "namespace", "uid")}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": volume_name(claim),
            "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER},
        },
        "spec": {
            "capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]},
            "accessModes": claim["spec"]["accessModes"],
            "storageClassName": claim["spec"].get("storageClassName") or "",
            "persistentVolumeReclaimPolicy": "Retain",  # this file deletes it; the controller cannot
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **reference},
            "hostPath": {"path": str(folder), "type": "DirectoryOrCreate"},
        },
    }


class ClaimProvisioner:
    """Makes volumes for claims, and removes those it made once their claims are gone."""

    def __init__(self, client: KubeClient, folder: Path) -> None:
        self._client = client
        self._folder = folder
        self._claims: dict[str, Object] = {}
        """Those that there are, by the names of their volumes."""
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        """Names of volumes."""

    def note_change(self, old: Object | None, new: Object | None) -> None:
        """Note that a claim has changed; `run` acts on it."""
        claim = new or old
        assert claim is not None
        name = volume_name(claim)
        self._claims.pop(name, None)
        if new is not None:
            self._claims[name] = new
        self._queue.put_nowait(name)

    def sweep(self) -> None:
        """Let `run` remove what claims left that went while no node process ran. All others must be noted."""
        for folder in self._folder.glob("pvc-*"):
            self._queue.put_nowait(folder.name)

    async def run(self) -> None:
        """Act on what was noted, again after a pause where that fails; never returns."""
        while True:
            name = await self._queue.get()
            try:
                await self._settle(name)
            except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
                log.warning("volume %s%s: %s", name, self._describe_claim(name), str(error) or repr(error))
                asyncio.get_running_loop().call_later(RETRY_SECONDS, self._queue.put_nowait, name)

    def _describe_claim(self, name: str) -> str:
        if (claim := self._claims.get(name)) is None:
            return ""
        return f" of claim {claim['metadata']['namespace']}/{claim['metadata']['name']}"

    async def _settle(self, name: str) -> None:
        """Make or remove a volume, as its claim is now."""
        claim = self._claims.get(name)
        if claim is None:
            await self._remove(name)
        elif needs_volume(claim):
            await self._provide(claim)

    async def _provide(self, claim: Object) -> None:
        folder = self._folder / volume_name(claim)
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        await _once(self._client.create("/api/v1/persistentvolumes", render_volume(claim, folder)))

    async def _remove(self, name: str) -> None:
        folder = self._folder / name
        if folder.exists():
            await _once(self._client.delete(f"/api/v1/persistentvolumes/{name}"))
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


async def _once(request: Awaitable[object]) -> None:
    """Make or remove a volume, unless another has done it before."""
    try:
        await request
    except ApiError as error:
        if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
            raise
