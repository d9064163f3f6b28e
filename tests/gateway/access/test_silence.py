"""Gateways that don't hear each other, that appear, and that go."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_gateway.access.errors import PeerReportError
from millrace_gateway.access.identity import Client, Tenant
from millrace_gateway.access.limits.ledger import AccountKey
from millrace_gateway.access.peers.limit_exchange import MOST_ENTRIES, REPORT_SECONDS
from millrace_gateway.access.peers.peer import SILENT_SECONDS
from millrace_gateway.access.peers.peer_report import Count, Entry, Report, encode_report
from testing.limited_gateways import (
    CONCURRENCY,
    LIMIT,
    POLICY,
    REQUESTS,
    SERVICE,
    Clock,
    LimitedGateway,
    make_gateways,
    meet,
    tell,
)


def use_tokens(gateway: LimitedGateway) -> int:
    return gateway.use(50)


def flood(
    gateways: list[LimitedGateway],
    groups: list[list[LimitedGateway]],
    seconds: float,
    use: Callable[[LimitedGateway], int] = use_tokens,
) -> int:
    """All gateways use what they can, those of a group hear each other; return what was used."""
    used, clock = 0, gateways[0].clock
    for _ in range(int(seconds / REPORT_SECONDS)):
        for group in groups:
            tell(group)
        for gateway in gateways:
            gateway.exchange.refresh()
            while amount := use(gateway):
                used += amount
        clock.now += REPORT_SECONDS
    return used


PHASES = st.lists(
    st.tuples(st.sampled_from([[0, 0, 0], [0, 1, 2], [0, 0, 1], [0, 1, 1]]), st.integers(1, 9)),
    min_size=1,
    max_size=4,
)


def check_divided(
    phases: list[tuple[list[int], int]], limit: int, use: Callable[[LimitedGateway], int]
) -> list[LimitedGateway]:
    gateways = make_gateways(3, Clock())
    used, seconds = flood(gateways, [gateways], REPORT_SECONDS, use), REPORT_SECONDS
    for division, duration in phases:
        groups = [[g for g, at in zip(gateways, division, strict=True) if at == i] for i in range(3)]
        used += flood(gateways, groups, duration, use)
        seconds += duration
    unheard = SILENT_SECONDS + 2 * REPORT_SECONDS
    over = 2 * limit + len(phases) * 2 * unheard * limit / 60  # all at once at the start, then each division
    assert used <= limit * (1 + seconds / 60) + over
    tell(gateways, rounds=3)
    return gateways


@given(PHASES)
def test_requests_a_minute_hold_however_the_gateways_are_divided(phases: list[tuple[list[int], int]]) -> None:
    gateways = check_divided(phases, REQUESTS, LimitedGateway.request)
    gateways[0].clock.now += 180.0
    tell(gateways)
    assert all(gateway.request() for gateway in gateways), "none is stuck"


@given(
    st.lists(st.tuples(st.sampled_from(["admit", "admit", "end", "report"]), st.integers(0, 2)), max_size=120)
)
def test_requests_at_once_are_over_by_what_one_interval_admits(steps: list[tuple[str, int]]) -> None:
    gateways = make_gateways(3, Clock())
    num_new = 0
    for what, number in steps:
        gateway = gateways[number]
        if what == "report":
            gateway.clock.now += REPORT_SECONDS
            tell(gateways)
            num_new = 0
        elif what == "admit":
            num_new += gateway.admit(1)
        elif gateway.open:
            gateway.open.pop()[0].settle(None)
        assert sum(len(each.open) for each in gateways) <= CONCURRENCY + num_new
    for gateway in gateways:
        while gateway.open:
            gateway.open.pop()[0].settle(None)
    tell(gateways)
    assert all(gateway.admit(1) for gateway in gateways), "none is stuck"


@given(PHASES)
def test_the_limit_holds_however_the_gateways_are_divided(phases: list[tuple[list[int], int]]) -> None:
    gateways = check_divided(phases, LIMIT, use_tokens)
    clock = gateways[0].clock
    assert all(gateway.ledger.share == 1.0 for gateway in gateways)
    for _ in range(180):  # what was too much is worked off within the minutes that it was worth
        clock.now += 1.0
        tell(gateways)
    assert all(gateway.deficit == 0.0 for gateway in gateways)


def test_a_gateway_alone_has_its_share_and_no_debt_when_it_is_heard_again() -> None:
    clock = Clock()
    first, second = gateways = make_gateways(2, clock)
    clock.now += SILENT_SECONDS + 0.1
    used = flood(gateways, [[first], [second]], 60)
    assert first.ledger.share == second.ledger.share == 0.5
    assert used == pytest.approx(LIMIT * 2, rel=0.06)
    tell(gateways, rounds=2)
    assert [gateway.deficit for gateway in gateways] == pytest.approx([LIMIT] * 2, abs=101)
    clock.now += 60.0
    tell(gateways)
    assert first.use(LIMIT) == LIMIT


def test_a_client_at_its_limit_goes_on_at_once_with_the_shares() -> None:
    clock = Clock()
    gateways = make_gateways(3, clock)
    for _ in range(3):
        assert gateways[0].use(LIMIT // 3)
    tell(gateways)
    for _ in range(60):  # the limit's rate is used, all of it by one gateway
        clock.now += 1.0
        tell(gateways)
        gateways[0].use(16)
    clock.now += SILENT_SECONDS + 0.1
    used = flood(gateways, [[gateway] for gateway in gateways], 30)
    assert used == pytest.approx(LIMIT / 2, rel=0.3)


def test_a_quiet_client_notices_no_silence() -> None:
    clock = Clock()
    first, second = make_gateways(2, clock)
    for _ in range(20):
        clock.now += 60.0
        assert first.use(LIMIT // 4)
        assert second.use(LIMIT // 4)
    tell([first, second], rounds=2)
    assert first.deficit <= LIMIT / 2


def test_a_gateway_that_appears_learns_what_was_used_once_and_not_from_each() -> None:
    clock = Clock()
    gateways = make_gateways(3, clock)
    for gateway in gateways:
        assert gateway.use(200)
        tell(gateways)
    gateways[0].restart()
    meet(gateways)
    assert gateways[0].ledger.share == pytest.approx(1 / 3)
    assert not gateways[0].exchange.is_settled
    tell(gateways, rounds=2)
    assert gateways[0].exchange.is_settled
    assert [gateway.deficit for gateway in gateways] == pytest.approx([600] * 3, abs=1)


def test_a_gateway_that_appears_gets_thousands_of_clients_in_parts() -> None:
    clock = Clock()
    old, new = LimitedGateway("old", clock), LimitedGateway("new", clock)
    old.exchange.set_peers([])
    clients = [Client(Tenant("a", "keys", f"c{i}")) for i in range(2 * MOST_ENTRIES + 1)]
    for _ in range(3):  # each has used more than what is missing now
        for client in clients:
            old.limiter.admit(client, SERVICE, POLICY, 100).settle(None)
        clock.now += 4.0
    meet([old, new])
    sent, parts = 0, []
    for _ in range(6):
        report = old.exchange.take_report("new", sent)
        new.exchange.apply_report("old", report.data)
        old.exchange.apply_report("new", new.exchange.take_report("old").data)
        parts.append(len(new.ledger))
        sent = report.version
    assert parts[:3] == [MOST_ENTRIES, 2 * MOST_ENTRIES, 2 * MOST_ENTRIES + 1]
    assert new.exchange.is_settled
    accounts = [new.ledger.find(AccountKey(SERVICE, client.tenant)) for client in clients]
    deficits = [account.tokens.find_total(clock(), 1.0) for account in accounts if account]
    assert deficits == pytest.approx([100.0] * len(clients), abs=1e-3)


def test_what_a_new_gateway_admitted_before_it_heard_the_others_counts() -> None:
    clock = Clock()
    old, new = LimitedGateway("old", clock), LimitedGateway("new", clock)
    old.exchange.set_peers([])
    assert old.use(700)
    meet([old, new])
    assert new.use(300)
    assert new.use(300) == 0  # it has a half, until it hears
    tell([old, new], rounds=2)
    assert [old.deficit, new.deficit] == pytest.approx([1000] * 2, abs=1)


def test_requests_at_once_count_everywhere_and_end_with_their_gateway() -> None:
    clock = Clock()
    first, second = make_gateways(2, clock)
    for _ in range(CONCURRENCY):
        assert first.admit(1)
    tell([first, second])
    assert not second.admit(1)
    second.exchange.set_peers([])
    clock.now += 2 * SILENT_SECONDS
    second.exchange.refresh()
    assert second.exchange.is_settled
    assert second.admit(1)


def test_nothing_of_a_former_incarnation_counts_any_more() -> None:
    clock = Clock()
    first, second = make_gateways(2, clock)
    assert first.admit(10)
    late = first.exchange.take_report("g1").data
    tell([first, second])
    first.restart()
    meet([first, second])
    tell([first, second], rounds=2)
    second.exchange.apply_report("g0", late)
    deficit = second.deficit
    assert deficit == pytest.approx(10)
    for _ in range(CONCURRENCY):
        assert second.admit(1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"\x93",
        encode_report(Report("x", 0, 1))[:-1],
        encode_report(Report("x", 0, 1, entries=[Entry(("a", "b"), None, 1, -1)])),
        encode_report(Report("x", 0, 1, entries=[Entry(("a", "b"), None, 1, 0, Count(0, 1, 1.0))])),
        encode_report(Report("x", 0, 1, entries=[Entry(("a", "b"), None, 1, 0, Count(1, 1, -1.0))])),
        encode_report(Report("x", 0, 1, entries=[Entry(("a", "b"), None, 1, 0, Count(1, 1, float("nan")))])),
    ],
)
def test_what_is_no_report_changes_nothing(data: bytes) -> None:
    first, _ = make_gateways(2, Clock())
    with pytest.raises(PeerReportError):
        first.exchange.apply_report("g1", data)
    assert len(first.ledger) == 0
