"""Whether a folder has a model already: what is wanted, in files of the right sizes."""

from millrace_fetch.plan.fetch_request import Order
from millrace_fetch.plan.names import OWN_FOLDER
from millrace_fetch.store.folder import MANIFEST, Folder
from millrace_fetch.store.links import refuse_links
from millrace_fetch.store.marker import Marker


def find_whole(order: Order) -> Marker | None:
    """Return what the folder has of a fixed revision, if that is all of it, and nobody writes there.

    Whoever evicts a model looks for its readers while it holds the lock. So this takes part in the lock, or a
    reader that comes meanwhile would be told of a model that goes. Raises FolderError of a link.
    """
    folder = Folder(order.folder, is_synced=order.is_synced)
    refuse_links(order.folder, order.folder / OWN_FOLDER / MANIFEST)
    with folder.shared() as is_held:
        marker = folder.read_marker() if is_held else None
        if marker is None or order.fixed is None or not is_wanted(order, marker, order.fixed):
            return None
        return None if list_missing(folder, marker) else marker


def is_wanted(order: Order, marker: Marker, revision: str) -> bool:
    """Whether the marker is of the model in that revision, with the files that are asked for."""
    wanted = (order.uri.place, revision, list(order.include))
    return wanted == (marker.source, marker.revision, marker.include)


def list_missing(folder: Folder, marker: Marker) -> list[str]:
    """Return the names of files that are not there in their size."""
    return [name for name, record in marker.files.items() if not folder.files.has(name, record)]
