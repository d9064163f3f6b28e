"""One fetch from start to end: lock, check the folder, resolve, choose files, download, write the marker."""

from collections.abc import Mapping
from dataclasses import dataclass

from millrace_fetch.errors import ChangedError, RefusedError, SourceError, UsageError
from millrace_fetch.plan.manifest import FileRecord, Manifest, RemoteFile
from millrace_fetch.plan.selection import read_shards, select
from millrace_fetch.plan.unsafe_names import check_names
from millrace_fetch.plan.uri import HubModel, OciImage, Order, S3Folder, WebFolder
from millrace_fetch.progress import Say, Watch
from millrace_fetch.sources.source import Source, complete
from millrace_fetch.store.folder import Folder, is_wanted, list_missing
from millrace_fetch.store.marker import Marker
from millrace_fetch.transfer.client import Client
from millrace_fetch.transfer.concurrency import run_together
from millrace_fetch.transfer.content import Content, Layers, Remote, prepare_parts
from millrace_fit.files.needed import explain_choice

_MAX_ROUNDS = 3
"""How often a fetch starts again because the source has changed."""


@dataclass(frozen=True)
class Outcome:
    """The folder's marker, and whether this run fetched the model."""

    marker: Marker
    has_fetched: bool


def open_source(order: Order) -> Source:
    """Return the source of the order's URI.

    Raises SourceError for unusable settings, and UsageError for a library that is not installed.
    """
    try:
        return _load_source(order)
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed; write: pip install 'millrace[fetch]'") from error


def _load_source(order: Order) -> Source:
    """Load only the libraries of this source: loading those of all sources took half of the start."""
    match order.uri:
        case HubModel() as model:
            from millrace_fetch.sources.hub import HubSource  # noqa: PLC0415

            return HubSource(model)
        case S3Folder() as folder:
            from millrace_fetch.sources.s3 import S3Source  # noqa: PLC0415

            return S3Source(folder)
        case OciImage() as image:
            from millrace_fetch.sources.oci import OciSource  # noqa: PLC0415

            return OciSource(image)
        case WebFolder() as folder:
            from millrace_fetch.sources.web import WebSource  # noqa: PLC0415

            return WebSource(folder)


async def fetch(order: Order, source: Source, watch: Watch) -> Outcome:
    """Fetch a model into the folder. Raises FetchError; the next run continues with the bytes on the disk."""
    folder = Folder(order.folder, is_synced=order.is_synced)
    async with folder.locked(watch.say):
        marker, fixed = folder.read_marker(), order.fixed
        # A fixed revision never changes: a pod that finds it in the folder needs no source.
        if marker and fixed and _is_whole(order, folder, marker, fixed, watch.say):
            return Outcome(marker, has_fetched=False)
        async with Client(source.authorize, order.connections, source.certificates) as client:
            try:
                return await _Fetch(order, source, watch, folder, client).run(marker)
            except RefusedError as error:
                raise source.explain(error) from error


class _Fetch:
    """The part of a fetch that needs the source."""

    def __init__(self, order: Order, source: Source, watch: Watch, folder: Folder, client: Client) -> None:
        self._order = order
        self._source = source
        self._watch = watch
        self._folder = folder
        self._client = client

    async def run(self, marker: Marker | None) -> Outcome:
        for _ in range(_MAX_ROUNDS):
            manifest = await self._source.resolve(self._client, self._watch.say)
            _check_revision(self._order, manifest)
            if marker and _is_whole(self._order, self._folder, marker, manifest.revision, self._watch.say):
                return Outcome(marker, has_fetched=False)
            marker = None
            try:
                return await self._bring(manifest)
            except ChangedError as error:
                # Resolve all files again, so that the folder ends with files of one revision.
                self._watch.say(f"{error}; resolving the model again")
        raise ChangedError(f"{self._order.uri} keeps changing: run it again when its upload is complete")

    async def _bring(self, manifest: Manifest) -> Outcome:
        content = await self._open(manifest)
        if choice := explain_choice(content.by_name):
            self._watch.say(choice)
        files = await self._complete_all(choose_files(content.by_name, await content.read_index()))
        self._folder.check_foreign(file.name for file in files)
        kept = self._keep(files)
        self._folder.drop_doubtful()
        parts = prepare_parts(self._folder, content.begin, files, kept)
        self._folder.begin(kept)
        records = kept | await content.bring(parts)
        return Outcome(self._complete(manifest, records), has_fetched=True)

    async def _complete_all(self, files: list[RemoteFile]) -> list[RemoteFile]:
        """Return the files with their checksums. Only files that will be fetched get a request for theirs."""
        return await run_together(complete(file, self._watch.say) for file in files)

    async def _open(self, manifest: Manifest) -> Content:
        found = manifest.layers or manifest.files
        remote = Remote(found, self._client, self._folder, self._watch, self._order.connections)
        if not manifest.layers:
            return remote
        return await Layers.fetch(remote, [layer.name for layer in manifest.layers], manifest.root)

    def _keep(self, files: list[RemoteFile]) -> dict[str, FileRecord]:
        """Return the records of files that the folder already has from an earlier revision, unchanged."""
        previous = self._folder.read_previous()
        records = previous.files if previous and self._folder.believes(previous) else {}
        alike = {file.name: records[file.name] for file in files if file.name in records and file.is_known}
        by_name = {file.name: file for file in files}
        return {
            name: record
            for name, record in alike.items()
            if record.identity == by_name[name].identity
            and not self._folder.may_be_another(name)
            and self._folder.files.has(name, record)
        }

    def _complete(self, manifest: Manifest, records: dict[str, FileRecord]) -> Marker:
        marker = Marker(
            self._order.uri.place,
            manifest.revision,
            records,
            boot=self._folder.boot,
        )
        self._folder.complete(marker)
        return marker


def choose_files(by_name: Mapping[str, RemoteFile], index: bytes | None) -> list[RemoteFile]:
    """Return the files that a model needs. `index` is the content of the index file, None without one."""
    names = select(by_name, None if index is None else read_shards(index))
    check_names(names)
    return [by_name[name] for name in names]


def _check_revision(order: Order, manifest: Manifest) -> None:
    """Raise SourceError where the wanted revision is gone: this source keeps no old revisions."""
    if order.revision is not None and manifest.revision != order.revision:
        raise SourceError(
            f"{order.uri} has changed: it now has revision {manifest.revision}, and the wanted revision "
            f"{order.revision} is gone. Ask for the present one"
        )


def _is_whole(order: Order, folder: Folder, marker: Marker, revision: str, say: Say) -> bool:
    """Whether the folder has the wanted revision. Removes its files of another size."""
    if not is_wanted(order, marker, revision):
        return False
    bad = list_missing(folder, marker)
    for name in bad:
        say(f"{name} has changed on the disk; fetching it again")
        folder.files.discard(name)
    return not bad
