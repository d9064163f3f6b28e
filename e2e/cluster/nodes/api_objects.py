"""What pods are given from the API server: ConfigMaps, Secrets, tokens, claims' folders."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.nodes.errors import PodRefusedError
from e2e.cluster.nodes.kube import KubeClient
from millrace_kubernetes.errors import ApiError

Object = dict[str, Any]
_REFRESH_AT = 0.8  # of a token's life, as kubelets do


@dataclass(frozen=True)
class _Token:
    text: str
    refresh_at: float


class ApiObjects:
    """Implements volumes.VolumeSource on the API server."""

    def __init__(self, client: KubeClient, disk: Path) -> None:
        """`disk` has the folders of local volumes, which are another on each Node."""
        self._client = client
        self._disk = disk
        self._tokens: dict[tuple[str, str, str], _Token] = {}

    async def config_map(self, namespace: str, name: str) -> Object | None:
        """Return the object, or None where there is none."""
        return await self._find(f"/api/v1/namespaces/{namespace}/configmaps/{name}")

    async def secret(self, namespace: str, name: str) -> Object | None:
        """Return the object, or None where there is none."""
        return await self._find(f"/api/v1/namespaces/{namespace}/secrets/{name}")

    async def token(self, pod: Object, projection: Object) -> str:
        """Return a token of the pod's ServiceAccount, the same one until 80 % of its life."""
        key = (pod["metadata"]["uid"], projection.get("audience", ""), projection["path"])
        known = self._tokens.get(key)
        if known is None or time.monotonic() > known.refresh_at:
            known = self._tokens[key] = await self._request_token(pod, projection)
        return known.text

    def forget(self, pod_uid: str) -> None:
        """Drop a pod's tokens."""
        self._tokens = {key: token for key, token in self._tokens.items() if key[0] != pod_uid}

    async def claim_path(self, namespace: str, claim: str) -> Path:
        """Return a bound claim's host folder. Raises PodRefusedError (FailedMount) where it has none yet."""
        found = await self._find(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}")
        volume_name = (found or {}).get("spec", {}).get("volumeName")
        if found is None or not volume_name or found.get("status", {}).get("phase") != "Bound":
            raise PodRefusedError("FailedMount", f"persistentvolumeclaim {claim!r} is not there or not bound")
        volume = await self._find(f"/api/v1/persistentvolumes/{volume_name}")
        spec = (volume or {}).get("spec", {})
        if "local" in spec:
            return self._find_local(volume_name, spec["local"]["path"])
        if "hostPath" not in spec:
            raise PodRefusedError(
                "FailedMount", f"persistent volume {volume_name!r} is neither hostPath nor local"
            )
        path = Path(spec["hostPath"]["path"])
        path.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240  one local call
        return path

    def _find_local(self, volume_name: str, path: str) -> Path:
        """Return a local volume's folder, which nobody makes for it. Raises PodRefusedError (FailedMount)."""
        folder = self._disk / path.lstrip("/")
        if not folder.exists():
            raise PodRefusedError(
                "FailedMount",
                f'MountVolume.NewMounter initialization failed for volume "{volume_name}" : '
                f'path "{path}" does not exist',
            )
        return folder

    async def _find(self, path: str) -> Object | None:
        try:
            return await self._client.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def _request_token(self, pod: Object, projection: Object) -> _Token:
        metadata = pod["metadata"]
        account = pod["spec"].get("serviceAccountName", "default")
        seconds = int(projection.get("expirationSeconds", 3600))
        spec: Object = {
            "expirationSeconds": seconds,
            "boundObjectRef": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
        }
        if audience := projection.get("audience"):
            spec["audiences"] = [audience]
        answer = await self._client.create(
            f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
        )
        return _Token(answer["status"]["token"], time.monotonic() + seconds * _REFRESH_AT)
