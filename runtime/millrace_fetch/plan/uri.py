"""The order of a fetch, and the URI of its model: text in, a typed value out. Pure."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from millrace_fetch.errors import UsageError

WRITABLE = (
    "hf://org/name, hf://org/name@revision, s3://bucket/folder, oci://registry/repository:tag, "
    "oci://registry/repository@sha256:… or https://host/folder"
)
LOCAL = "file://"
"""The start of a local folder's URI."""
_REPOSITORY = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}(/[A-Za-z0-9_][\w.-]{0,95})?", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9_][\w./-]{0,254}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REGISTRY = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9][A-Za-z0-9.-]*)(:[0-9]{1,5})?")
_IMAGE = re.compile(r"[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")


@dataclass(frozen=True)
class HubModel:
    """A repository of models on a Hugging Face Hub."""

    repository: str
    revision: str | None = None
    """Branch, tag or commit; None is the default branch."""

    @property
    def pinned(self) -> str | None:
        """The revision if it is a commit, which never changes; else None."""
        return self.revision if self.revision and _COMMIT.fullmatch(self.revision) else None

    @property
    def place(self) -> str:
        """The URI without the revision."""
        return f"hf://{self.repository}"

    def __str__(self) -> str:
        return self.place + (f"@{self.revision}" if self.revision else "")


@dataclass(frozen=True)
class WebFolder:
    """A folder of a plain web server."""

    base: str
    """Ends with a slash."""
    query: str = ""
    """Sent with every request, for storage that signs whole folders. Secret."""

    def url_of(self, name: str) -> str:
        """Return the address of a file. The name must need no quoting."""
        return f"{self.base}{name}" + (f"?{self.query}" if self.query else "")

    pinned: ClassVar[None] = None

    @property
    def place(self) -> str:
        """The URL without its secret parts."""
        return redact(self.base)

    def __str__(self) -> str:
        return self.place


@dataclass(frozen=True)
class S3Folder:
    """The objects of a bucket below a prefix."""

    bucket: str
    prefix: str = ""
    """Ends with a slash, unless it is empty."""
    pinned: ClassVar[None] = None

    @property
    def place(self) -> str:
        """The whole URI: a bucket has no revisions."""
        return f"s3://{self.bucket}/{self.prefix}"

    def __str__(self) -> str:
        return self.place


@dataclass(frozen=True)
class OciImage:
    """An artifact or an image of a registry."""

    registry: str
    """Its host, with a port if it has one."""
    repository: str
    reference: str = "latest"
    """A tag or a digest."""

    @property
    def pinned(self) -> str | None:
        """The reference if it is a digest, which never changes; else None."""
        return self.reference if _DIGEST.fullmatch(self.reference) else None

    @property
    def place(self) -> str:
        """The URI without the reference."""
        return f"oci://{self.registry}/{self.repository}"

    def __str__(self) -> str:
        return self.place + (f"@{self.reference}" if self.pinned else f":{self.reference}")


ModelUri = HubModel | WebFolder | S3Folder | OciImage


def parse_uri(text: str) -> ModelUri:
    """Read a URI. Raises UsageError, whose message lists the accepted forms."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise UsageError(f"'{text}' is no URI: write {WRITABLE}")
    match scheme.lower():
        case "hf":
            return _parse_hub(rest)
        case "s3":
            return _parse_s3(rest)
        case "oci":
            return _parse_oci(rest)
        case "http" | "https":
            return _parse_web(text)
        case "file":
            raise UsageError(
                f"{text} is a local folder, so there is nothing to fetch: use the folder as it is, "
                "or copy it with cp -r"
            )
        case "pvc":
            raise UsageError(
                f"{text} is a claim in a cluster, so there is nothing to fetch: write it into "
                "spec.model.uri, and replicas mount it"
            )
    raise UsageError(f"models of {scheme}:// can't be fetched: write {WRITABLE}")


def _parse_hub(rest: str) -> HubModel:
    repository, at, revision = rest.partition("@")
    if not _REPOSITORY.fullmatch(repository) or ".." in repository:
        raise UsageError(
            f"'{repository}' is no repository of a Hub: write hf://org/name or hf://org/name@revision"
        )
    if at and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise UsageError(f"'{revision}' is no revision: write a branch, a tag or a commit after the @")
    return HubModel(repository, revision or None)


def _parse_s3(rest: str) -> S3Folder:
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.strip("/")
    if not _BUCKET.fullmatch(bucket):
        # Not shown: some users write a key and its secret before the bucket.
        raise UsageError("the URI names no bucket: write s3://bucket/folder, and credentials nowhere in it")
    if not prefix.isprintable():
        raise UsageError(f"{prefix!r} is no folder of a bucket: write s3://bucket/folder")
    return S3Folder(bucket, f"{prefix}/" if prefix else "")


def _parse_oci(rest: str) -> OciImage:
    registry, _, path = rest.partition("/")
    if not _REGISTRY.fullmatch(registry):
        # Not shown: some users write a name and a password before the host.
        raise UsageError(
            "the URI names no registry: write oci://registry/repository:tag, and credentials nowhere in it"
        )
    named, at, digest = path.partition("@")
    repository, colon, tag = named.partition(":")
    if not _IMAGE.fullmatch(repository):
        raise UsageError(
            f"{repository!r} is no repository of a registry: write oci://registry/repository:tag"
        )
    if at and not _DIGEST.fullmatch(digest):
        raise UsageError(f"{digest!r} is no digest: write sha256: and 64 hexadecimal digits after the @")
    if colon and not _TAG.fullmatch(tag):
        raise UsageError(f"{tag!r} is no tag: write letters, digits, dots and hyphens after the colon")
    return OciImage(registry, repository, digest or tag or OciImage.reference)


def _parse_web(text: str) -> WebFolder:
    try:
        parts = urlsplit(text)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        has_host = False
    if not has_host or re.search(r"[\s\\]", text):
        raise UsageError(f"'{redact(text)}' names no host: write https://host/folder")
    base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/"
    return WebFolder(base, parts.query)


def redact(url: str) -> str:
    """Return the URL without the parts that may be secret: user, password and query."""
    if "://" not in url:  # without a known host, all text before an @ may be a password
        place, _, query = url.partition("?")
        return place.rpartition("@")[2] + ("?…" if query else "")
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an unreadable address"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" + ("?…" if parts.query else "")


@dataclass(frozen=True)
class Order:
    """One fetch: which model, into which folder, and how."""

    uri: ModelUri
    folder: Path
    connections: int = 8
    revision: str | None = None
    """The wanted revision, as an earlier `--resolve` named it; None: the present one."""
    is_synced: bool = True
    """Whether to wait for the disk. If not, the files count only until the machine reboots."""

    @property
    def fixed(self) -> str | None:
        """The wanted revision; None if only the source knows it."""
        return self.revision or self.uri.pinned


def pin(order: Order) -> Order:
    """Return the order with its revision in the URI, for sources that keep old ones: a Hub or a registry."""
    match order.uri:
        case HubModel() as model if order.revision:
            return replace(order, uri=replace(model, revision=order.revision))
        case OciImage() as image if order.revision:
            return replace(order, uri=replace(image, reference=order.revision))
    return order
