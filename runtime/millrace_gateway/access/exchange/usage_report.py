"""One gateway's report to another of the use of clients, as bytes. Pure.

Counts are those since the sender's start, so a report that comes twice changes nothing.
"""

from collections.abc import Sequence

import msgspec

from millrace_gateway.access.errors import PeerReportError
from millrace_gateway.access.exchange.exchange import MOST_ENTRIES, Outgoing
from millrace_gateway.access.identity import Tenant
from millrace_gateway.access.usage import ClientUse, UsageBook, Use
from millrace_gateway.route.objects import ServiceKey


class ServiceUse(msgspec.Struct, array_like=True, frozen=True):
    """The use of one service."""

    service: tuple[str, str]
    counts: tuple[int, int, int, int, int]
    """Requests, refused ones, and tokens: of prompts, cached, of answers."""


class UsageReport(msgspec.Struct, array_like=True, frozen=True):
    """The clients that have changed."""

    incarnation: str
    clients: Sequence[tuple[tuple[str, str, str], list[ServiceUse]]]


_decoder = msgspec.msgpack.Decoder(UsageReport)


def take_usage(book: UsageBook, incarnation: str, sent: int) -> Outgoing:
    """Return what has changed since the version of the last report on the same connection."""
    changed = book.list_changed(sent, MOST_ENTRIES)
    version = changed[-1][1].version if len(changed) == MOST_ENTRIES else book.version
    clients = [(tenant, _list_uses(client)) for tenant, client in changed]
    data = msgspec.msgpack.encode(UsageReport(incarnation, clients))
    return Outgoing(data, version, version < book.version)


def apply_usage(book: UsageBook, data: bytes) -> None:
    """Take over another gateway's report. Raises PeerReportError."""
    try:
        report = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PeerReportError(f"another gateway sent no report of use: {error}") from error
    for tenant, uses in report.clients:
        if any(count < 0 for use in uses for count in use.counts):
            raise PeerReportError(f"another gateway sent impossible counts of {tenant}")
        found = {ServiceKey(*use.service): Use(*use.counts) for use in uses}
        book.replace_elsewhere(report.incarnation, Tenant(*tenant), found)


def _list_uses(client: ClientUse) -> list[ServiceUse]:
    return [
        ServiceUse(service, (use.requests, use.refused, use.prompt, use.cached, use.completion))
        for service, use in client.services.items()
    ]
