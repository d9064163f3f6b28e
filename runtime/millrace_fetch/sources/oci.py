"""A model in an OCI registry: an artifact of files, a packed folder, or an image with files below /models.

It uses a small client of our own: `oras`, the client on PyPI, downloads blobs only whole, can't be cancelled,
and needs a second HTTP library.
"""

import hashlib
import json
import os
import re

from millrace_fetch.errors import FetchError, RefusedError, SourceError
from millrace_fetch.plan.manifest import Checksum, Manifest, RemoteFile
from millrace_fetch.plan.unsafe_names import LAYERS
from millrace_fetch.plan.uri import OciImage
from millrace_fetch.progress import Say
from millrace_fetch.sources.oci_manifest import (
    MEDIA_TYPES,
    Descriptor,
    ImageIndex,
    ImageManifest,
    read_manifest,
)
from millrace_fetch.sources.registry_access import RegistryAccess, find_basic
from millrace_fetch.sources.source import read_small
from millrace_fetch.transfer.client import Client, find_origin
from millrace_fetch.transfer.retry import with_tries

ENV_PLAIN_HTTP = "MILLRACE_OCI_PLAIN_HTTP"
"""Registries that speak http, such as `registry.lan:5000`, separated by commas."""
_LOOPBACK = re.compile(r"(localhost|127(\.\d+){3}|\[::1\])(:\d+)?")
_ALIASES = {"docker.io": ("index.docker.io", "registry-1.docker.io")}
"""Docker's own registry: its name in docker's configuration, and its host."""


class OciSource:
    """A model's artifact or image."""

    certificates = None

    def __init__(self, image: OciImage) -> None:
        self._image = image
        aliases = _ALIASES.get(image.registry, ())
        host = aliases[-1] if aliases else image.registry
        self._origin = find_origin(f"{_scheme_of(host)}://{host}")
        self._access = RegistryAccess(self._origin, image.repository, find_basic((image.registry, *aliases)))
        self.authorize = self._access.authorize
        self._is_found = False

    async def resolve(self, client: Client, say: Say) -> Manifest:
        """Return the files of the artifact, or the layers of the image, at the tag's present digest."""
        content = await self._read(client, self._image.reference, self._image.pinned, say)
        revision = f"sha256:{hashlib.sha256(content).hexdigest()}"
        found = read_manifest(content)
        if isinstance(found, ImageIndex):
            chosen = found.choose()
            found = read_manifest(await self._read(client, chosen.digest, chosen.digest, say))
        if not isinstance(found, ImageManifest):
            raise SourceError(f"{self._image} is an index of indexes: write the digest of one image")
        self._is_found = True
        return await self._announce(client, revision, found, say)

    def explain(self, refusal: RefusedError) -> FetchError:
        """Return an error that explains a registry's status."""
        image = self._image
        match refusal.status:
            case 401 if self._access.has_credentials:
                return SourceError(f"{image.registry} refuses the credentials of $DOCKER_CONFIG for {image}")
            case 401:
                return SourceError(
                    f"{image} is not public: put credentials into $DOCKER_CONFIG/config.json, as docker "
                    "login does (credential helpers are not run)"
                )
            case 403:
                return SourceError(f"the credentials may not pull {image}: ask for that right")
            case 404 if self._is_found:  # the tag has moved, and the registry has collected its old blobs
                return SourceError(
                    f"{image.registry} no longer has all blobs of {image}{_code(refusal)}: run it again to "
                    "fetch the tag's present image, or push the image again"
                )
            case 404:
                return SourceError(
                    f"{image.registry} has no {image}: check repository and tag{_code(refusal)}"
                )
        return SourceError(f"{refusal}{_code(refusal)}")

    async def _read(self, client: Client, reference: str, digest: str | None, say: Say) -> bytes:
        checksum = Checksum("sha256", digest.partition(":")[2]) if digest else None
        url = f"{self._origin}/v2/{self._image.repository}/manifests/{reference}"
        manifest = RemoteFile(f"the manifest of {self._image}", url, None, checksum)
        return await read_small(client, manifest, say, {"Accept": ", ".join(MEDIA_TYPES)})

    async def _announce(self, client: Client, revision: str, found: ImageManifest, say: Say) -> Manifest:
        files = found.files()
        blobs = {**files} or {f"{LAYERS}/{layer.sha256}": layer for layer in found.layers}
        if not files and not all(layer.is_tar for layer in found.layers):
            raise SourceError(
                f"{self._image} is {found.describe_kind()}, which can't be served: push config.json, "
                "*.safetensors and tokenizer.json with oras push, or build an image with them below /models"
            )
        has_ranges = bool(blobs) and await with_tries(lambda: self._has_ranges(client, blobs), say)
        announced = {name: self._blob(name, layer, has_ranges=has_ranges) for name, layer in blobs.items()}
        if files:
            return Manifest(revision, tuple(announced.values()))
        ordered = (announced[f"{LAYERS}/{layer.sha256}"] for layer in found.layers)
        return Manifest(revision, (), tuple(ordered), found.find_root())

    async def _has_ranges(self, client: Client, blobs: dict[str, Descriptor]) -> bool:
        """Request one byte: a blob host without range support answers with all of them."""
        largest = max(blobs.values(), key=lambda layer: layer.size_bytes)
        url = self._blob("", largest, has_ranges=True).url
        async with client.request("GET", url, {"Range": "bytes=0-0"}) as response:
            response.close()
            return response.status == 206

    def _blob(self, name: str, layer: Descriptor, *, has_ranges: bool) -> RemoteFile:
        url = f"{self._origin}/v2/{self._image.repository}/blobs/{layer.digest}"
        checksum = Checksum("sha256", layer.sha256)
        return RemoteFile(name, url, layer.size_bytes, checksum, has_ranges=has_ranges)


def _scheme_of(host: str) -> str:
    host = host.lower()
    plain = {name.strip().lower() for name in os.environ.get(ENV_PLAIN_HTTP, "").split(",")}
    return "http" if host in plain or _LOOPBACK.fullmatch(host) else "https"


def _code(refusal: RefusedError) -> str:
    """Return a registry's error code in brackets, such as ` (MANIFEST_UNKNOWN)`; empty without one."""
    try:
        code = str(json.loads(refusal.reason)["errors"][0]["code"])
    except (ValueError, KeyError, TypeError, IndexError):
        return ""
    return f" ({code[:40]})" if code.isprintable() else ""
