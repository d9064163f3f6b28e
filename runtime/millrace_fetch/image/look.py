"""Looks into the layers of an image before a fetch, from the top layer down, by range requests.

No digest can verify parts of a layer: the findings serve to refuse a model early, and to check whether it
fits. The fetch verifies each layer before it opens it.
"""

from functools import partial

from millrace_fetch.errors import NoPartsError
from millrace_fetch.image.findings import UNSEEN, Seen, SeenImage, Skim
from millrace_fetch.image.tarball import Budget, EnoughError
from millrace_fetch.plan.manifest import Manifest, RemoteFile
from millrace_fetch.progress import Say
from millrace_fetch.transfer.client import Client
from millrace_fetch.transfer.concurrency import Loop, call_in_thread
from millrace_fetch.transfer.remote_file import Blocks, read_excerpt
from millrace_fetch.transfer.retry import with_tries

MAX_LAYERS = 256
"""A container can have 127. Each costs a request, even if it is empty."""


def compute_image_bytes(manifest: Manifest, files_bytes: int | None) -> int:
    """Return the size of an image: its layers, and the files unpacked from them.

    Without `files_bytes` the files count as much as the layers.
    """
    layers_bytes = sum(layer.size_bytes or 0 for layer in manifest.layers)
    return layers_bytes + (layers_bytes if files_bytes is None else files_bytes)


async def look_at_image(client: Client, manifest: Manifest, say: Say) -> SeenImage:
    """Return the findings of a look at an image's layers. Raises FetchError."""
    with Loop() as loop:
        look = _Look(client, loop, say)
        found = await call_in_thread(partial(look.run, manifest.layers, manifest.root))
        return SeenImage(manifest.revision, found, manifest.root)


class _Look:
    """A walk through archives. It blocks, so it runs in a thread; the event loop fetches its bytes."""

    def __init__(self, client: Client, loop: Loop, say: Say) -> None:
        self._client = client
        self._loop = loop
        self._say = say
        self._budget = Budget()

    def run(self, layers: tuple[RemoteFile, ...], root: str) -> list[Seen]:
        """Return the findings, the lowest layer first. An incomplete layer ends the walk."""
        skim, found = Skim(self._budget, root), list[Seen]()
        for number in reversed(range(len(layers))):
            found.insert(0, UNSEEN if len(found) == MAX_LAYERS else self._look(skim, layers[number], number))
            if not found[0].is_whole:
                break
        return found

    def _look(self, skim: Skim, layer: RemoteFile, number: int) -> Seen:
        size = layer.size_bytes or 0
        blocks = Blocks(partial(self._fetch, layer), size, self._budget.fetched, has_ranges=layer.has_ranges)
        return skim.look(blocks, size, number)

    def _fetch(self, layer: RemoteFile, begin: int, end: int) -> bytes:
        try:
            return self._loop.run(
                lambda: with_tries(lambda: read_excerpt(self._client, layer, begin, end), self._say)
            ).content
        except NoPartsError as error:  # such as from a cache that does not have the layer yet
            raise EnoughError from error
