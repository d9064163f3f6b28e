"""A gateway's reports to another gateway, of limits and of clients' use, as bytes. Pure.

Both gateways may be of different versions: a reader ignores unknown fields at the end of a list, and an
absent field has its default. Counts are totals since the account or the sender began, so a report that comes
twice changes nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from millrace_gateway.access.errors import PeerReportError
from millrace_gateway.access.identity import Tenant
from millrace_gateway.access.limits.ledger import Account, AccountKey
from millrace_gateway.access.usage import ClientUse, UsageBook, Use
from millrace_gateway.route.objects import ServiceKey

MOST_ENTRIES = 200
"""Accounts or clients in a report, so that no stream waits for more than 3 ms. The rest follows at once."""
MOST_COUNT = 2**63 - 1
"""A larger count is sent as this one: msgpack has none above 64 bits, and one account must not end a link."""


class Outgoing(NamedTuple):
    """A report, as bytes that can be sent."""

    data: bytes
    version: int
    """The sender's version that the reader has after this report."""
    has_more: bool
    """Whether the sender has more changes already."""


class Count(msgspec.Struct, array_like=True, frozen=True):
    """The use of one limit per minute."""

    limit: int
    spent: int
    """What the sender has used since the account began there."""
    deficit: float
    """What is missing from the whole limit, as the sender sees it."""


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """One account."""

    service: tuple[str, str]
    tenant: tuple[str, str, str] | None
    since: int
    """The sender's version when the account began there."""
    running: int
    """Requests that run through the sender."""
    requests: Count | None = None
    tokens: Count | None = None

    @property
    def key(self) -> AccountKey:
        """The name of the account."""
        return make_key(self.service, self.tenant)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing is missing."""
        return not (self.running or any(count and count.deficit for count in (self.requests, self.tokens)))


class Report(msgspec.Struct, array_like=True, frozen=True):
    """What has changed at the sender since the version that the reader has confirmed."""

    incarnation: str
    """A new name each time the sender starts."""
    base: int
    """The version that the reader has; 0: the report has everything."""
    version: int
    """The version that the reader has after this report."""
    known_incarnation: str | None = None
    """The reader's incarnation that the sender knows."""
    known_version: int = 0
    """The reader's version that the sender has."""
    entries: list[Entry] = []
    forgotten: Sequence[tuple[tuple[str, str], tuple[str, str, str] | None]] = []
    """Accounts that the sender has forgotten, because they were idle."""
    latest: int = 0
    """The sender's version, which is higher than the reader's if the report does not have all changes."""


_report_decoder = msgspec.msgpack.Decoder(Report)
_encoder = msgspec.msgpack.Encoder()


def encode_report(report: Report) -> bytes:
    """Return a report as bytes."""
    return _encoder.encode(report)


def decode_report(data: bytes) -> Report:
    """Return the report. Raises PeerReportError for bytes that are no report, or impossible counts."""
    try:
        report = _report_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PeerReportError(f"another gateway sent no report: {error}") from error
    for entry in report.entries:
        counts = [count for count in (entry.requests, entry.tokens) if count]
        if entry.running < 0 or any(count.limit < 1 or not count.deficit >= 0.0 for count in counts):
            raise PeerReportError(f"another gateway sent impossible counts of {entry.key}")
    return report


def make_key(service: tuple[str, str], tenant: tuple[str, str, str] | None) -> AccountKey:
    """Return the name of an account."""
    return AccountKey(ServiceKey(*service), Tenant(*tenant) if tenant else None)


def describe_account(account: Account, now: float, share: float) -> Entry:
    """Return the entry about an account."""
    counts = [
        Count(meter.bucket.limit, _bound(meter.spent), meter.find_total(now, share)) if meter.bucket else None
        for meter in (account.requests, account.tokens)
    ]
    return Entry(account.key.service, account.key.tenant, account.since, account.num_here, *counts)


class ServiceUse(msgspec.Struct, array_like=True, frozen=True):
    """The use of one service."""

    service: tuple[str, str]
    counts: tuple[int, int, int, int, int]
    """Requests, refused ones, and tokens: of prompts, cached, of answers."""


class UsageReport(msgspec.Struct, array_like=True, frozen=True):
    """The clients that have changed."""

    incarnation: str
    clients: Sequence[tuple[tuple[str, str, str], list[ServiceUse]]]


_usage_decoder = msgspec.msgpack.Decoder(UsageReport)


def take_usage(book: UsageBook, incarnation: str, sent: int) -> Outgoing:
    """Return a report of the clients' use since `sent`, the version of the last one on the connection."""
    changed = book.list_changed(sent, MOST_ENTRIES)
    version = changed[-1][1].version if len(changed) == MOST_ENTRIES else book.version
    clients = [(tenant, _list_uses(client)) for tenant, client in changed]
    data = msgspec.msgpack.encode(UsageReport(incarnation, clients))
    return Outgoing(data, version, version < book.version)


def apply_usage(book: UsageBook, data: bytes) -> None:
    """Apply another gateway's report to the book. Raises PeerReportError."""
    try:
        report = _usage_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PeerReportError(f"another gateway sent no report of use: {error}") from error
    for tenant, uses in report.clients:
        if any(count < 0 for use in uses for count in use.counts):
            raise PeerReportError(f"another gateway sent impossible counts of {tenant}")
        found = {ServiceKey(*use.service): Use(*use.counts) for use in uses}
        book.replace_elsewhere(report.incarnation, Tenant(*tenant), found)


def _list_uses(client: ClientUse) -> list[ServiceUse]:
    return [
        ServiceUse(
            service,
            (use.requests, use.refused, _bound(use.prompt), _bound(use.cached), _bound(use.completion)),
        )
        for service, use in client.services.items()
    ]


def _bound(count: int) -> int:
    return min(count, MOST_COUNT)
