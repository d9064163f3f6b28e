"""The counts that one other gateway has reported. Pure.

Each report has totals since the sender's account began, so new use is their difference from the last report.
A doubled or late report changes nothing, and the next report makes up for a lost one.
"""

from collections import deque
from typing import NamedTuple

from millrace_gateway.access.limits.ledger import AccountKey, Ledger, Meter
from millrace_gateway.access.peers.peer_report import Count, Entry, Report, make_key

SILENT_SECONDS = 2.0
"""After so long without a report a gateway is not heard."""
_NUM_FORMER = 8


class Baseline(NamedTuple):
    """The counts of an account in the last report."""

    since: int
    requests: int = 0
    tokens: int = 0
    running: int = 0


class Peer:
    """Owner of one gateway's counts, as far as the ledger has them."""

    def __init__(self, ledger: Ledger, heard_until: float) -> None:
        """`heard_until`: until then the gateway counts as heard without a report."""
        self._ledger = ledger
        self._heard_until = heard_until
        self._incarnation: str | None = None
        self._former: deque[str] = deque(maxlen=_NUM_FORMER)
        """Incarnations that have ended: their reports come too late."""
        self._version = 0
        self._joined: int | None = None
        """The sender's version in the first report: older accounts have a past that the ledger lacks."""
        self._baselines: dict[AccountKey, Baseline] = {}
        self.confirmed: int | None = None
        """The ledger's version that this gateway has; None: it has none, and gets everything."""

    @property
    def known(self) -> tuple[str | None, int]:
        """The incarnation and the version that the ledger has."""
        return (self._incarnation, self._version)

    def is_heard(self, now: float) -> bool:
        """Whether it has reported lately."""
        return now <= self._heard_until

    def forget(self) -> None:
        """Forget its counts: it is silent, gone, or has started again. Its use stays counted."""
        for key in list(self._baselines):
            self._drop(key)
        self._incarnation, self._version, self._joined, self.confirmed = None, 0, None, None

    def apply(self, report: Report, own_incarnation: str, now: float) -> None:
        """Apply a report to the ledger."""
        if report.incarnation in self._former:
            return
        if report.incarnation != self._incarnation:
            self._begin(report.incarnation)
        is_mutual = report.known_incarnation == own_incarnation and report.known_version > 0
        self.confirmed = report.known_version if is_mutual else None
        if report.version < self._version or report.base > self._version:
            return  # it is late, or an earlier report with other changes was lost
        is_first = self._joined is None
        self._heard_until = now + SILENT_SECONDS
        if self._joined is None:
            self._joined = report.latest
        for service, tenant in report.forgotten:
            self._drop(make_key(service, tenant))
        if is_first or report.version > self._version:
            for entry in report.entries:
                self._apply_entry(entry, now)
        self._version = report.version

    def _begin(self, incarnation: str) -> None:
        if self._incarnation is not None:
            self._former.append(self._incarnation)
        self.forget()
        self._incarnation = incarnation

    def _apply_entry(self, entry: Entry, now: float) -> None:
        baseline = self._baselines.get(entry.key)
        has_past = baseline is None and entry.since <= (self._joined or 0)
        if baseline is None or baseline.since != entry.since:
            baseline = Baseline(entry.since, running=baseline.running if baseline else 0)
        self._baselines[entry.key] = Baseline(
            entry.since,
            entry.requests.spent if entry.requests else 0,
            entry.tokens.spent if entry.tokens else 0,
            entry.running,
        )
        if entry.is_idle and self._ledger.find(entry.key) is None:
            return  # else two gateways would report an idle account to each other for ever
        account = self._ledger.open(entry.key)
        for meter, count, before in (
            (account.requests, entry.requests, baseline.requests),
            (account.tokens, entry.tokens, baseline.tokens),
        ):
            if count is not None:
                self._apply_count(meter, count, None if has_past else before, now)
        account.num_elsewhere += entry.running - baseline.running

    def _apply_count(self, meter: Meter, count: Count, before: int | None, now: float) -> None:
        """Add the gateway's use since `before`; None: raise the deficit to the one that it reports."""
        share = self._ledger.share
        bucket = meter.open(meter.bucket.limit if meter.bucket else count.limit, now, share)
        if before is not None:
            bucket.add(count.spent - before)
            return
        here = bucket.total
        if meter.spent > 0 and count.spent > 0 and self.confirmed is None:
            # Neither gateway saw the other's use: at most the whole limit is used, unless one owes more.
            both = here + min(count.spent, count.deficit)
            bucket.raise_to(min(both, max(here, count.deficit, bucket.limit)), share)
        else:
            bucket.raise_to(count.deficit, share)

    def _drop(self, key: AccountKey) -> None:
        baseline = self._baselines.pop(key, None)
        account = self._ledger.find(key)
        if baseline and account:
            account.num_elsewhere -= baseline.running
