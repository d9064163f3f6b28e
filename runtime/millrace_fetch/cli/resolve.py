"""What a source has now, without a byte of weights: for who must know it before pods fetch it."""

from millrace_fetch.errors import NoPartsError, RefusedError
from millrace_fetch.fetch import choose_files
from millrace_fetch.image.registry_look import look_at_image
from millrace_fetch.plan.fetch_request import Order
from millrace_fetch.plan.head import describe_head
from millrace_fetch.plan.manifest import Manifest
from millrace_fetch.plan.resolved_model import Resolved
from millrace_fetch.plan.selection import CONFIG, INDEX, is_of_another_format
from millrace_fetch.sources.source import Source
from millrace_fetch.transfer.client import Client
from millrace_fetch.transfer.head_reader import Files, RemoteFiles, read_head
from millrace_fetch.transfer.retry import Say


async def resolve(order: Order, source: Source, say: Say) -> Resolved:
    """Ask the source. Raises FetchError."""
    async with Client(source.authorize, order.connections, source.certificates) as client:
        try:
            manifest = await source.resolve(client, say)
            if manifest.layers:
                return await _describe_image(client, manifest, say)
            return await _describe_files(RemoteFiles(client, manifest, say), say)
        except RefusedError as error:
            raise source.explain(error) from error


async def _describe_image(client: Client, manifest: Manifest, say: Say) -> Resolved:
    """Return what is known of an image. There must be room for its layers, and for the files out of them."""
    layers_bytes = sum(layer.size_bytes or 0 for layer in manifest.layers)
    seen = await look_at_image(client, manifest, say)
    if seen.is_whole:
        found = await _describe_files(seen.list_files(), say)
        size = None if found.num_bytes is None else layers_bytes + found.num_bytes
        return found._replace(num_bytes=size)
    head = seen.guess()
    if head is None:
        say(f"{CONFIG} is not where the layers begin: nothing is known of the model until it is fetched")
    facts = None if head is None else describe_head(head)
    return Resolved(manifest.revision, len(manifest.layers), 2 * layers_bytes, facts)


async def _describe_files(model: Files, say: Say) -> Resolved:
    by_name = model.by_name
    if is_of_another_format(by_name):
        return Resolved(model.revision, 0, None, describe_head(await read_head(model)))
    index = await model.read(INDEX) if INDEX in by_name else None
    sizes = [file.size_bytes for file in choose_files(by_name, index)]
    known = [size for size in sizes if size is not None]
    num_bytes = sum(known) if len(known) == len(sizes) else None
    try:
        facts = describe_head(await read_head(model))
    except NoPartsError:
        say("the server gives no parts of a file: nothing is known of the model until it is fetched, whole")
        facts = None
    return Resolved(model.revision, len(sizes), num_bytes, facts)
