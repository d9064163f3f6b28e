"""One gateway's report to another, as bytes. Pure.

Both may be of different versions: a reader ignores fields at the end of a list that it does not know, and a
field that is absent has its default.
"""

from collections.abc import Sequence

import msgspec

from millrace_gateway.access.errors import PeerReportError
from millrace_gateway.access.identity import Tenant
from millrace_gateway.access.limits.ledger import Account, AccountKey
from millrace_gateway.route.objects import ServiceKey


class Count(msgspec.Struct, array_like=True, frozen=True):
    """One limit a minute."""

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
    """Another one each time the sender starts."""
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


_decoder = msgspec.msgpack.Decoder(Report)
_encoder = msgspec.msgpack.Encoder()


def encode_report(report: Report) -> bytes:
    """Return a report as bytes."""
    return _encoder.encode(report)


def decode_report(data: bytes) -> Report:
    """Return the report. Raises PeerReportError for bytes that are none, or that no gateway sends."""
    try:
        report = _decoder.decode(data)
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
        Count(meter.bucket.limit, meter.spent, meter.find_total(now, share)) if meter.bucket else None
        for meter in (account.requests, account.tokens)
    ]
    return Entry(account.key.service, account.key.tenant, account.since, account.num_here, *counts)
