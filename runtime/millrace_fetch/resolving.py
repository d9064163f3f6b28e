"""What a source has now, without a byte of weights: for who must know it before pods fetch it."""

import json
from typing import Any, NamedTuple

from millrace_fetch.client import Client
from millrace_fetch.errors import RefusedError
from millrace_fetch.fetching import Order, choose_files
from millrace_fetch.head import describe_head
from millrace_fetch.headers import read_head
from millrace_fetch.sources.source import Source
from millrace_fetch.trying import Say
from millrace_fit.facts import ModelFacts


class Resolved(NamedTuple):
    """A revision of a model, how much a fetch of it brings, and what is known of it."""

    revision: str
    num_files: int
    num_bytes: int | None
    """None where the source does not say the size of each file."""
    facts: ModelFacts

    def render(self) -> str:
        """Return it as one line of JSON, of less than 2,000 bytes."""
        found: dict[str, Any] = {"revision": self.revision, "numFiles": self.num_files}
        if self.num_bytes is not None:
            found["numBytes"] = self.num_bytes
        return json.dumps({**found, "facts": json.loads(self.facts.to_json())}, separators=(",", ":"))


async def resolve(order: Order, source: Source, say: Say) -> Resolved:
    """Ask the source. Raises FetchError."""
    async with Client(source.origin, source.authorization, order.connections) as client:
        try:
            manifest = await source.resolve(client, say)
            files = await choose_files(client, manifest, order.include, say)
            head = await read_head(client, manifest, say)
        except RefusedError as error:
            raise source.explain(error) from error
    sizes = [file.size_bytes for file in files]
    known = [size for size in sizes if size is not None]
    num_bytes = sum(known) if len(known) == len(sizes) else None
    return Resolved(manifest.revision, len(files), num_bytes, describe_head(head))
