"""Gives each claim without a storage class a folder of this machine, as a volume of its own.

Two node processes may both try: the volume's name follows from the claim's uid, so one of them wins.
"""

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any

import aiohttp

from e2e.cluster.nodes.kube import KubeClient
from millrace_kubernetes.errors import ApiError

Object = dict[str, Any]
log = logging.getLogger(__name__)
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
        self._queue: asyncio.Queue[tuple[Object | None, Object | None]] = asyncio.Queue()

    def note_change(self, old: Object | None, new: Object | None) -> None:
        """Note that a claim has changed; `run` acts on it."""
        self._queue.put_nowait((old, new))

    async def run(self) -> None:
        """Act on what was noted; never returns."""
        while True:
            old, new = await self._queue.get()
            try:
                if new is not None and needs_volume(new):
                    await self._provide(new)
                elif new is None and old is not None:
                    await self._remove(old)
            except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
                if not (isinstance(error, ApiError) and error.status in (404, 409)):
                    log.warning("volume for a claim: %s", error)

    async def _provide(self, claim: Object) -> None:
        folder = self._folder / volume_name(claim)
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        await self._client.create("/api/v1/persistentvolumes", render_volume(claim, folder))

    async def _remove(self, claim: Object) -> None:
        folder = self._folder / volume_name(claim)
        if folder.exists():
            await self._client.delete(f"/api/v1/persistentvolumes/{volume_name(claim)}")
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
