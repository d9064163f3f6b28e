"""What a source has now, without a byte of weights: for who must know it before pods fetch it."""

import json
from typing import NamedTuple

from millrace_fetch.client import Client
from millrace_fetch.errors import RefusedError
from millrace_fetch.fetching import Order, choose_files
from millrace_fetch.sources.source import Source
from millrace_fetch.trying import Say


class Resolved(NamedTuple):
    """A revision of a model, and how much a fetch of it brings."""

    revision: str
    num_files: int
    num_bytes: int | None
    """None where the source does not say the size of each file."""

    def render(self) -> str:
        """Return it as one line of JSON."""
        found = {"revision": self.revision, "numFiles": self.num_files, "numBytes": self.num_bytes}
        return json.dumps({key: value for key, value in found.items() if value is not None})


async def resolve(order: Order, source: Source, say: Say) -> Resolved:
    """Ask the source. Raises FetchError."""
    async with Client(source.origin, source.authorization, order.connections) as client:
        try:
            manifest = await source.resolve(client, say)
            files = await choose_files(client, manifest, order.include, say)
        except RefusedError as error:
            raise source.explain(error) from error
    sizes = [file.size_bytes for file in files]
    known = [size for size in sizes if size is not None]
    return Resolved(manifest.revision, len(files), sum(known) if len(known) == len(sizes) else None)
