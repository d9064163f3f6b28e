"""Keeps one limit across all gateways: each reports its use, and adds the use that others report. Pure.

While a gateway hears the others, it admits by the whole limit. So all gateways together exceed the limit by
at most what they admit in the 250 ms between two reports. Gateways that do not hear each other use a share of
the limit each, and the shares sum to at most the whole.
"""

from collections.abc import Collection

from millrace_gateway.access.limits.ledger import Ledger
from millrace_gateway.access.peers.peer import SILENT_SECONDS, Peer
from millrace_gateway.access.peers.peer_report import (
    MOST_ENTRIES,
    Outgoing,
    Report,
    decode_report,
    describe_account,
    encode_report,
)

REPORT_SECONDS = 0.25
"""Between two reports to a gateway."""


class LimitExchange:
    """Owner of the other gateways' counts, each by its pod's name."""

    def __init__(self, ledger: Ledger, incarnation: str) -> None:
        """`incarnation` is a new name each time this gateway starts."""
        self.incarnation = incarnation
        self._ledger = ledger
        self._listed: frozenset[str] = frozenset()
        self._has_listed = False
        self._peers: dict[str, Peer] = {}

    def set_peers(self, names: Collection[str]) -> None:
        """Replace the names of all other gateways' pods.

        In the first list each gateway counts as silent until it reports, because this gateway is new and
        knows nothing. A gateway that appears later is itself new, and has two seconds to report.
        """
        now = self._ledger.clock()
        for name in names:
            if name not in self._peers:
                self._peers[name] = Peer(
                    self._ledger, now + SILENT_SECONDS if self._has_listed else now - 1.0
                )
        self._listed, self._has_listed = frozenset(names), True
        self.refresh()

    def take_report(self, name: str, sent: int = 0) -> Outgoing:
        """Return a report of the changes that the gateway of this name lacks.

        `sent` is the version of the last report on the same connection, which keeps the order of reports. It
        counts as received once that gateway has confirmed any version.
        """
        ledger, now = self._ledger, self._ledger.clock()
        peer = self._peers.get(name)
        base = max(peer.confirmed, sent) if peer and peer.confirmed else 0
        known_incarnation, known_version = peer.known if peer else (None, 0)
        changed = ledger.list_changed(base, MOST_ENTRIES)
        version = changed[-1].version if len(changed) == MOST_ENTRIES else ledger.version
        gone = ledger.list_forgotten(base, version) if base else []
        report = Report(
            self.incarnation,
            base,
            version,
            known_incarnation=known_incarnation,
            known_version=known_version,
            entries=[describe_account(one, now, ledger.share) for one in changed],
            forgotten=[(key.service, key.tenant) for key in gone],
            latest=ledger.version,
        )
        return Outgoing(encode_report(report), version, version < ledger.version)

    def apply_report(self, name: str, data: bytes) -> None:
        """Apply another gateway's report to the ledger. Raises PeerReportError."""
        report = decode_report(data)
        self.refresh()
        now = self._ledger.clock()
        peer = self._peers.get(name)
        if peer is None:  # its pod is not listed yet
            peer = self._peers[name] = Peer(self._ledger, now - 1.0)
        peer.apply(report, self.incarnation, now)
        self.refresh()

    def refresh(self) -> None:
        """Drop the counts of silent gateways, and idle accounts. Called with each load poll."""
        now = self._ledger.clock()
        for name, peer in list(self._peers.items()):
            if not peer.is_heard(now):
                peer.forget()
                if name not in self._listed:
                    del self._peers[name]
        self._ledger.set_share((1 + self.num_heard) / (1 + len(self._peers)))
        confirmed = [peer.confirmed for peer in self._peers.values() if peer.confirmed is not None]
        self._ledger.forget_some(min(confirmed, default=self._ledger.version))

    @property
    def num_heard(self) -> int:
        """The number of other gateways that have reported lately."""
        now = self._ledger.clock()
        return sum(peer.is_heard(now) for peer in self._peers.values())

    @property
    def is_settled(self) -> bool:
        """Whether all other gateways are heard, so that this one knows all that they admitted."""
        return self._has_listed and self.num_heard == len(self._peers)
