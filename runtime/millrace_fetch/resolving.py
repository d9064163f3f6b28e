"""What a source has now, without a byte of weights: for who must know it before pods fetch it."""

from millrace_fetch.client import Client
from millrace_fetch.errors import RefusedError
from millrace_fetch.fetching import choose_files
from millrace_fetch.head import describe_head
from millrace_fetch.headers import read_head
from millrace_fetch.manifest import Manifest
from millrace_fetch.order import Order
from millrace_fetch.resolved import Resolved
from millrace_fetch.selection import INDEX, is_of_another_format
from millrace_fetch.sources.source import Source, read_small
from millrace_fetch.trying import Say


async def resolve(order: Order, source: Source, say: Say) -> Resolved:
    """Ask the source. Raises FetchError."""
    async with Client(source.authorize, order.connections, source.certificates) as client:
        try:
            manifest = await source.resolve(client, say)
            if manifest.layers:
                return _describe_image(manifest)
            return await _describe_files(order, client, manifest, say)
        except RefusedError as error:
            raise source.explain(error) from error


def _describe_image(manifest: Manifest) -> Resolved:
    """Return what is known of an image. There must be room for its layers, and for the files out of them."""
    num_bytes = sum(layer.size_bytes or 0 for layer in manifest.layers)
    return Resolved(manifest.revision, len(manifest.layers), 2 * num_bytes, None)


async def _describe_files(order: Order, client: Client, manifest: Manifest, say: Say) -> Resolved:
    by_name = manifest.by_name()
    if is_of_another_format(by_name):
        return Resolved(manifest.revision, 0, None, describe_head(await read_head(client, manifest, say)))
    index = await read_small(client, by_name[INDEX], say) if INDEX in by_name else None
    sizes = [file.size_bytes for file in choose_files(by_name, index, order.include)]
    known = [size for size in sizes if size is not None]
    num_bytes = sum(known) if len(known) == len(sizes) else None
    head = await read_head(client, manifest, say)
    return Resolved(manifest.revision, len(sizes), num_bytes, describe_head(head))
