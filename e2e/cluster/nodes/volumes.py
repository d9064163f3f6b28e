"""A pod's volumes as host folders, and the mounts of a container among them.

Refuses volume kinds it does not know. What the API server holds (ConfigMaps, Secrets, tokens) is fetched
by the `VolumeSource` it is given and rewritten by `refresh`.
"""

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from e2e.cluster.nodes.environment import Facts, field_value
from e2e.cluster.nodes.errors import PodRefusedError
from e2e.cluster.nodes.sandbox import Mount

Object = dict[str, Any]
_FETCHED = ("configMap", "secret", "projected", "downwardAPI")


class VolumeSource(Protocol):
    """What volumes are filled from; None where the object does not exist."""

    async def config_map(self, namespace: str, name: str) -> Object | None: ...
    async def secret(self, namespace: str, name: str) -> Object | None: ...
    async def token(self, pod: Object, projection: Object) -> str: ...
    async def claim_path(self, namespace: str, claim: str) -> Path: ...


class PodVolumes:
    """The volumes of one pod under one folder of the host."""

    def __init__(self, facts: Facts, folder: Path, source: VolumeSource) -> None:
        self._facts = facts
        self._folder = folder
        self._source = source
        self._paths: dict[str, Path] = {}

    async def prepare(self) -> None:
        """Make every volume. Raises PodRefusedError (FailedMount) for the first that can't be made."""
        for volume in self._facts.pod["spec"].get("volumes", ()):
            self._paths[volume["name"]] = await self._prepare(volume)

    async def refresh(self) -> None:
        """Write what changed in the API server since."""
        for volume in self._facts.pod["spec"].get("volumes", ()):
            if any(kind in volume for kind in _FETCHED):
                await self._prepare(volume)

    @property
    def can_change(self) -> bool:
        """Whether some volume shows what the API server holds."""
        return any(kind in each for each in self._facts.pod["spec"].get("volumes", ()) for kind in _FETCHED)

    def mounts(self, container: Object) -> tuple[Mount, ...]:
        """Return the container's mounts, outer ones first."""
        wanted = sorted(container.get("volumeMounts", ()), key=lambda each: each["mountPath"].count("/"))
        return tuple(self._mount(each) for each in wanted)

    def _mount(self, wanted: Object) -> Mount:
        path = self._paths[wanted["name"]]
        readonly = bool(wanted.get("readOnly")) or self._is_readonly(wanted["name"])
        return Mount(wanted["mountPath"], os.path.realpath(path), readonly=readonly)

    def _is_readonly(self, name: str) -> bool:
        volume = next(each for each in self._facts.pod["spec"]["volumes"] if each["name"] == name)
        claim = volume.get("persistentVolumeClaim", {})
        return bool(claim.get("readOnly")) or any(kind in volume for kind in _FETCHED)

    async def _prepare(self, volume: Object) -> Path:
        name: str = volume["name"]
        folder = self._folder / name
        kind = next((key for key in volume if key != "name"), "emptyDir")
        if kind == "hostPath":
            return _host_path(volume[kind])
        if kind == "persistentVolumeClaim":
            path = await self._source.claim_path(self._namespace, str(volume[kind]["claimName"]))
            return Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        if kind in _FETCHED:
            _write_files(folder, await self._files(kind, volume[kind]))
        elif kind == "emptyDir":
            folder.chmod(0o777)
        else:
            raise PodRefusedError("FailedMount", f"volume {name!r}: this node has no {kind} volumes")
        return folder

    @property
    def _namespace(self) -> str:
        return str(self._facts.pod["metadata"]["namespace"])

    async def _files(self, kind: str, source: Object) -> dict[str, bytes]:
        if kind == "projected":
            files: dict[str, bytes] = {}
            for part in source.get("sources", ()):
                (part_kind, part_source), *_ = part.items()
                files |= await self._files(part_kind, part_source)
            return files
        if kind == "serviceAccountToken":
            return {source["path"]: (await self._source.token(self._facts.pod, source)).encode()}
        if kind == "downwardAPI":
            return {item["path"]: self._downward(item).encode() for item in source.get("items", ())}
        return _choose(await self._fetch(kind, source), source, kind)

    def _downward(self, item: Object) -> str:
        if "fieldRef" not in item:
            raise PodRefusedError("FailedMount", f"{item['path']}: this node has no resourceFieldRef")
        return field_value(item["fieldRef"]["fieldPath"], self._facts)

    async def _fetch(self, kind: str, source: Object) -> Mapping[str, bytes]:
        name = source.get("name") or source.get("secretName", "")
        if kind == "configMap":
            item = await self._source.config_map(self._namespace, name)
        elif kind == "secret":
            item = await self._source.secret(self._namespace, name)
        else:
            raise PodRefusedError("FailedMount", f"this node has no projected {kind}")
        if item is None and not source.get("optional"):
            raise PodRefusedError("FailedMount", f"{kind.lower()} {self._namespace}/{name} not found")
        return decode_data(kind, item or {})


def decode_data(kind: str, item: Object) -> dict[str, bytes]:
    """Return the content of a ConfigMap's or Secret's keys."""
    plain = (
        {} if kind == "secret" else {key: value.encode() for key, value in (item.get("data") or {}).items()}
    )
    encoded = item.get("data" if kind == "secret" else "binaryData") or {}
    return plain | {key: base64.b64decode(value) for key, value in encoded.items()}


def _choose(data: Mapping[str, bytes], source: Object, kind: str) -> dict[str, bytes]:
    if "items" not in source:
        return dict(data)
    chosen = {}
    for item in source["items"]:
        if item["key"] in data:
            chosen[item["path"]] = data[item["key"]]
        elif not source.get("optional"):
            raise PodRefusedError("FailedMount", f"{kind.lower()} has no key {item['key']!r}")
    return chosen


def _host_path(source: Object) -> Path:
    path, kind = Path(source["path"]), source.get("type", "")
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.touch(exist_ok=True)
    if (
        not path.exists()
        or (kind == "Directory" and not path.is_dir())
        or (kind == "File" and not path.is_file())
    ):
        raise PodRefusedError(
            "FailedMount", f"hostPath {path} is not there, or is no {kind or 'file or folder'}"
        )
    return path


def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make the folder hold exactly these; each file changes in one step."""
    for path in [each for each in folder.rglob("*") if each.is_file()]:
        if str(path.relative_to(folder)) not in files:
            path.unlink()
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != content:
            fresh = path.with_name(f".{path.name}.new")
            fresh.write_bytes(content)
            fresh.replace(path)
