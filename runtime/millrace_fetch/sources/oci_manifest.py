"""Parses a registry's manifests: named files of an artifact, a packed folder, or layers of an image. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millrace_fetch.errors import SourceError
from millrace_fetch.image.overlay import ROOT, normalise

MEDIA_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_TITLE = "org.opencontainers.image.title"
_UNPACK = "io.deis.oras.content.unpack"
"""Marks a folder that ORAS has packed. Its entries' paths begin with the folder's title."""
_MODEL_PACK = "application/vnd.cncf.model."
"""The start of the media types of CNCF's ModelPack: https://github.com/modelpack/model-spec"""
_PACKS = (_MODEL_PACK, "application/vnd.kitops.modelkit.")
"""Kinds of artifacts whose tars hold a model's files without a folder around them."""
_FILE_PATH = "org.cncf.model.filepath"
_FOREIGN = {
    "application/vnd.ollama.": "a model of Ollama",
    "application/vnd.docker.ai.": "a model of Docker Model Runner",
}
"""Kinds of artifacts that mostly hold GGUF, by the start of their media types."""
_TARS = ("application/vnd.oci.image.layer.v1.tar", "application/vnd.docker.image.rootfs.diff.tar")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PLATFORM = ("linux", "amd64")


@dataclass(frozen=True)
class Descriptor:
    """A reference of a manifest to a blob or another manifest."""

    media_type: str
    digest: str
    size_bytes: int
    annotations: Mapping[str, str]
    platform: tuple[str, str]

    @property
    def sha256(self) -> str:
        """The digest without its algorithm."""
        return self.digest.partition(":")[2]

    @property
    def title(self) -> str | None:
        """The file's name; None if the blob is no single file."""
        if self.media_type.startswith(_PACKS):
            return self.annotations.get(_FILE_PATH) if self.media_type.endswith(".raw") else None
        return None if self.is_folder else self.annotations.get(_TITLE)

    @property
    def is_folder(self) -> bool:
        """Whether ORAS has packed a folder into it."""
        return self.annotations.get(_UNPACK) == "true"

    @property
    def is_pack(self) -> bool:
        """Whether it is a tar of a ModelPack or a ModelKit."""
        return self.media_type.startswith(_PACKS) and ".tar" in self.media_type

    @property
    def is_tar(self) -> bool:
        """Whether it is a tar: a layer of a container's image, or a packed folder."""
        return self.is_folder or self.is_pack or self.media_type.startswith(_TARS)


@dataclass(frozen=True)
class ImageManifest:
    """One image or artifact, its lowest layer first."""

    layers: tuple[Descriptor, ...]

    def files(self) -> dict[str, Descriptor]:
        """Return the layers that are files, by their names."""
        return {layer.title: layer for layer in self.layers if layer.title}

    def find_root(self) -> str:
        """Return the folder of the tars that has the model; empty for their top. Raises UnsafeNameError."""
        folders = [layer for layer in self.layers if layer.is_folder]
        if len(folders) == 1 == len(self.layers):
            return normalise(folders[0].annotations.get(_TITLE, ""))
        return "" if folders or any(layer.is_pack for layer in self.layers) else ROOT

    def describe_kind(self) -> str:
        """Return what the layers are, if they are neither files nor tars."""
        types = [layer.media_type for layer in self.layers]
        named = (name for start, name in _FOREIGN.items() if any(one.startswith(start) for one in types))
        return next(named, f"an artifact of {types[0][:60]!r}")


@dataclass(frozen=True)
class ImageIndex:
    """Several images, one for each platform."""

    manifests: tuple[Descriptor, ...]

    def choose(self) -> Descriptor:
        """Return the image for linux/amd64, else the first: all platforms have the same files of a model."""
        if not self.manifests:
            raise SourceError("the index names no image")
        return next((one for one in self.manifests if one.platform == _PLATFORM), self.manifests[0])


def read_manifest(content: bytes) -> ImageManifest | ImageIndex:
    """Read a manifest. Raises SourceError for an unknown form."""
    try:
        fields = json.loads(content)
        if "manifests" in fields:
            return ImageIndex(_read_descriptors(fields["manifests"]))
        return ImageManifest(_read_descriptors(fields["layers"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError("the registry's manifest can't be read: it lists no layers") from error


def _read_descriptors(found: Sequence[dict[str, Any]]) -> tuple[Descriptor, ...]:
    return tuple(map(_read_descriptor, found))


def _read_descriptor(fields: dict[str, Any]) -> Descriptor:
    digest, size = str(fields["digest"]), int(fields["size"])
    if not _DIGEST.fullmatch(digest) or size < 0:
        raise SourceError(f"the manifest has the digest {digest[:20]!r}…: only sha256 can be verified")
    annotations = {str(key): str(value) for key, value in (fields.get("annotations") or {}).items()}
    platform = fields.get("platform") or {}
    return Descriptor(
        str(fields.get("mediaType", "")),
        digest,
        size,
        annotations,
        (str(platform.get("os", "")), str(platform.get("architecture", ""))),
    )
