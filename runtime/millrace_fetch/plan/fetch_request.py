"""What a fetch is asked for. Pure."""

from dataclasses import dataclass, replace
from pathlib import Path

from millrace_fetch.plan.uri import HubModel, ModelUri, OciImage


@dataclass(frozen=True)
class Order:
    """What is wanted."""

    uri: ModelUri
    folder: Path
    connections: int = 8
    revision: str | None = None
    """The only one that is wanted, as an earlier look at the source named it; None: what is there now."""
    is_synced: bool = True
    """Whether to wait for the disk. Else what came counts until the machine starts again."""

    @property
    def fixed(self) -> str | None:
        """The revision that the folder is to have; None where only the source knows it."""
        return self.revision or self.uri.pinned


def pin(order: Order) -> Order:
    """Return the order of its revision alone, where its source keeps old ones: a Hub, and a registry."""
    match order.uri:
        case HubModel() as model if order.revision:
            return replace(order, uri=replace(model, revision=order.revision))
        case OciImage() as image if order.revision:
            return replace(order, uri=replace(image, reference=order.revision))
    return order
