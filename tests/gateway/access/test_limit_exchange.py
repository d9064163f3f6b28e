"""Several gateways with one limit: whatever happens to their reports, the limit holds."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace_gateway.access.limits.bucket import Bucket
from millrace_gateway.access.limits.ledger import AccountKey
from millrace_gateway.access.limits.reservation import Usage
from testing.limited_gateways import CLIENT, LIMIT, SERVICE, Clock, LimitedGateway, make_gateways, tell

KEY = AccountKey(SERVICE, CLIENT.tenant)


class SharedLimit(RuleBasedStateMachine):
    """Reports are lost, delayed and doubled, gateways restart, and each hears every other within 2 s.

    The bound, at each admission: what one bucket for all gateways would miss is at most what this gateway's
    bucket misses, and what the others have used and not reported to it yet. (Use that was given back and was
    not reported yet is the slack: a bucket that was full meanwhile has not kept it.)
    """

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.gateways = make_gateways(3, self.clock)
        self.truth = Bucket(LIMIT, self.clock())
        self.used = {gateway.name: 0 for gateway in self.gateways}
        self.seen = {(g.name, h.name): 0 for g in self.gateways for h in self.gateways if g is not h}
        self.slack = dict.fromkeys(self.used, 0)
        self.sent: list[tuple[LimitedGateway, LimitedGateway, bytes, int]] = []
        self.newest: dict[tuple[str, str], int] = {}
        self.told_at = self.clock()

    def use(self, gateway: LimitedGateway, tokens: int) -> None:
        self.used[gateway.name] += tokens
        self.truth.advance(self.clock(), 1.0)
        self.truth.add(tokens)
        self.note_slack()

    def truth_deficit(self) -> float:
        self.truth.advance(self.clock(), 1.0)
        return self.truth.deficit

    def unseen(self, gateway: LimitedGateway) -> int:
        return sum(
            self.used[other.name] - self.seen[gateway.name, other.name]
            for other in self.gateways
            if other is not gateway
        )

    def note_slack(self) -> None:
        for gateway in self.gateways:
            self.slack[gateway.name] = max(self.slack[gateway.name], -self.unseen(gateway))

    @rule(index=st.integers(0, 2), tokens=st.integers(1, 400))
    def admit(self, index: int, tokens: int) -> None:
        gateway = self.gateways[index]
        missing = gateway.deficit
        if gateway.admit(tokens):
            truth, slack = self.truth_deficit(), self.slack[gateway.name]
            assert missing + tokens <= LIMIT + 1e-3
            assert truth <= missing + max(0, self.unseen(gateway)) + slack + 1e-3
            self.use(gateway, tokens)

    @rule(index=st.integers(0, 2), used=st.integers(0, 600), is_known=st.booleans())
    def end(self, index: int, used: int, is_known: bool) -> None:  # noqa: FBT001  drawn
        gateway = self.gateways[index]
        if gateway.open:
            reservation, reserved = gateway.open.pop(0)
            reservation.settle(Usage(used, 0, 0) if is_known else None)
            self.use(gateway, used - reserved if is_known else 0)

    @rule(index=st.integers(0, 2))
    def release(self, index: int) -> None:
        gateway = self.gateways[index]
        if gateway.open:
            reservation, reserved = gateway.open.pop()
            reservation.release()
            self.use(gateway, -reserved)

    @rule(sender=st.integers(0, 2), receiver=st.integers(0, 2))
    def send(self, sender: int, receiver: int) -> None:
        gateway, other = self.gateways[sender], self.gateways[receiver]
        if gateway is not other:
            report = gateway.exchange.take_report(other.name).data
            self.sent.append((gateway, other, report, self.used[gateway.name]))

    @precondition(lambda self: self.sent)
    @rule(position=st.integers(0, 100), is_kept=st.booleans())
    def deliver(self, position: int, is_kept: bool) -> None:  # noqa: FBT001  drawn
        position %= len(self.sent)
        gateway, other, report, used = self.sent[position] if is_kept else self.sent.pop(position)
        known = other.exchange._peers[gateway.name]._version
        other.exchange.apply_report(gateway.name, report)
        if other.exchange._peers[gateway.name]._version > known:
            self.seen[other.name, gateway.name] = used
        self.note_slack()

    @precondition(lambda self: self.sent)
    @rule(position=st.integers(0, 100))
    def lose(self, position: int) -> None:
        self.sent.pop(position % len(self.sent))

    @rule(seconds=st.sampled_from([0.01, 0.2, 0.7, 1.4]))
    def wait(self, seconds: float) -> None:
        if self.clock.now + seconds - self.told_at > 1.9:
            self.tell_all()
        self.clock.now += seconds

    @rule()
    def tell_all(self) -> None:
        tell(self.gateways)
        self.told_at = self.clock.now
        self.seen = {pair: self.used[pair[1]] for pair in self.seen}
        self.note_slack()

    @rule(index=st.integers(0, 2), tokens=st.integers(1, 400))
    def restart(self, index: int, tokens: int) -> None:
        """What it has not reported is lost. What it admits before it hears the others may count for one."""
        gateway = self.gateways[index]
        others = [other for other in self.gateways if other is not gateway]
        lost = max(self.used[gateway.name] - self.seen[other.name, gateway.name] for other in others)
        gateway.restart()
        self.sent = [one for one in self.sent if one[1] is not gateway]  # its connections are gone
        gateway.exchange.set_peers([other.name for other in others])
        assert gateway.ledger.share == pytest.approx(1 / 3)
        if gateway.admit(tokens):
            self.use(gateway, tokens)
        self.tell_all()
        self.tell_all()
        assert gateway.exchange.is_settled
        assert gateway.deficit >= max(other.deficit for other in others) - tokens - 1e-3
        slack = max(self.slack.values()) + max(0, lost) + tokens
        self.slack = dict.fromkeys(self.slack, slack)

    @rule()
    def wait_for_minutes(self) -> None:
        for _ in range(40):
            self.tell_all()
            self.clock.now += 1.9

    @invariant()
    def counts_agree(self) -> None:
        for gateway in self.gateways:
            gateway.ledger.check_integrity()
            assert gateway.ledger.share == 1.0
            account = gateway.ledger.find(KEY)
            assert account is None or account.num_here == len(gateway.open)

    def teardown(self) -> None:
        """Nothing is stuck: once all is told and used up, everyone admits. Then all is forgotten."""
        for gateway in self.gateways:
            while gateway.open:
                reservation, _ = gateway.open.pop()
                reservation.settle(None)
        tell(self.gateways, rounds=2)
        for gateway in self.gateways:
            deficit = gateway.deficit
            assert deficit <= self.truth_deficit() + 3 * LIMIT
        for _ in range(int(1.5 + max(g.deficit for g in self.gateways) / LIMIT * 60 / 1.9)):
            self.clock.now += 1.9
            tell(self.gateways)
        for gateway in self.gateways:
            assert gateway.admit(LIMIT)
            gateway.open.pop()[0].release()
        for _ in range(8):
            self.clock.now += 1.0
            tell(self.gateways)
        assert [len(gateway.ledger) for gateway in self.gateways] == [0, 0, 0]
        assert not any(peer._baselines for g in self.gateways for peer in g.exchange._peers.values())


TestSharedLimit = SharedLimit.TestCase
TestSharedLimit.settings = settings(stateful_step_count=30)
