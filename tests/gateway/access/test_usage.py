import msgspec
import pytest
from prometheus_client import CollectorRegistry

from millrace_gateway.access.errors import PeerReportError
from millrace_gateway.access.identity import Tenant
from millrace_gateway.access.limits.ledger import Account, AccountKey
from millrace_gateway.access.limits.reservation import Usage
from millrace_gateway.access.peers.limit_exchange import MOST_ENTRIES
from millrace_gateway.access.peers.peer_report import (
    MOST_COUNT,
    Report,
    apply_usage,
    decode_report,
    describe_account,
    encode_report,
    take_usage,
)
from millrace_gateway.access.usage import MOST_GATEWAYS, UsageBook
from millrace_gateway.access.usage_metrics import CHOICE_SECONDS, UsageCollector
from millrace_gateway.route.objects import ServiceKey
from testing.limited_gateways import Clock

CHAT, CODE = ServiceKey("a", "chat"), ServiceKey("a", "code")


def tenant(entry: str) -> Tenant:
    return Tenant("a", "keys", entry)


def test_a_client_sees_its_own_use_by_service() -> None:
    book = UsageBook(1_700_000_000.5)
    book.count_request(tenant("ada"), CHAT, Usage(10, 4, 5))
    book.count_request(tenant("ada"), CODE, None)
    book.count_refusal(tenant("ada"), CHAT)
    book.count_request(tenant("bob"), CHAT, Usage(1, 0, 1))
    tokens = {"prompt": 10, "cached": 4, "completion": 5}
    none = {"prompt": 0, "cached": 0, "completion": 0}
    assert book.describe(tenant("ada")) == {
        "object": "usage",
        "client": "ada",
        "since": 1_700_000_000,
        "requests": 2,
        "refused": 1,
        "tokens": tokens,
        "services": {
            "a/chat": {"requests": 1, "refused": 1, "tokens": tokens},
            "a/code": {"requests": 1, "refused": 0, "tokens": none},
        },
    }
    assert book.describe(tenant("eve"))["services"] == {}


def test_what_passed_through_other_gateways_is_in_the_document_once() -> None:
    book, other = UsageBook(0.0), UsageBook(0.0)
    book.count_request(tenant("ada"), CHAT, Usage(10, 0, 5))
    for i in range(MOST_ENTRIES + 10):
        other.count_request(tenant(f"c{i}"), CHAT, Usage(1, 0, 1))
    other.count_request(tenant("ada"), CODE, Usage(3, 1, 2))
    sent = 0
    for has_more in (True, False, False):
        report = take_usage(other, "other-1", sent)
        sent = report.version
        assert report.has_more == has_more
        for _ in range(2):
            apply_usage(book, report.data)
    found = book.describe(tenant("ada"))
    assert found["tokens"] == {"prompt": 13, "cached": 1, "completion": 7}
    assert set(found["services"]) == {"a/chat", "a/code"}
    assert book.total.requests == 1
    restarted = UsageBook(0.0)
    restarted.count_request(tenant("ada"), CODE, Usage(1, 0, 0))
    apply_usage(book, take_usage(restarted, "other-2", 0).data)
    assert book.describe(tenant("ada"))["tokens"]["prompt"] == 14


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        msgspec.msgpack.encode(["x", [[["a", "b"], []]]]),
        msgspec.msgpack.encode(["x", [[["a", "b", "c"], [[["a", "chat"], [0, 0, -1, 0, 0]]]]]]),
    ],
)
def test_what_is_no_report_of_use_changes_nothing(data: bytes) -> None:
    book = UsageBook(0.0)
    with pytest.raises(PeerReportError):
        apply_usage(book, data)
    assert book.describe(Tenant("a", "b", "c"))["services"] == {}


def test_counts_beyond_what_a_report_can_say_are_its_largest() -> None:
    book, other = UsageBook(0.0), UsageBook(0.0)
    other.count_request(tenant("ada"), CHAT, Usage(1, 0, 2**64))
    apply_usage(book, take_usage(other, "other", 0).data)
    assert book.describe(tenant("ada"))["tokens"]["completion"] == MOST_COUNT
    account = Account(AccountKey(CHAT, tenant("ada")))
    account.tokens.open(1000, 0.0, 1.0)
    account.tokens.spend(2**64, 0.0, 1.0)
    entry = describe_account(account, 0.0, 1.0)
    assert decode_report(encode_report(Report("x", 0, 1, entries=[entry]))).entries == [entry]


def test_gateways_of_the_past_are_forgotten_in_the_end() -> None:
    book, other = UsageBook(0.0), UsageBook(0.0)
    other.count_request(tenant("ada"), CHAT, None)
    for i in range(MOST_GATEWAYS + 5):
        apply_usage(book, take_usage(other, f"g-{i}", 0).data)
    assert book.describe(tenant("ada"))["requests"] == MOST_GATEWAYS


def test_memory_is_bounded_and_the_sum_stays() -> None:
    book = UsageBook(0.0, most_records=10)
    for i in range(100):
        book.count_request(tenant("steady"), CHAT, Usage(1, 0, 0))
        book.count_request(tenant(f"c{i}"), CHAT, Usage(1, 0, 0))
    assert len(book.clients) == 10
    assert book.clients[tenant("steady")].total.requests == 100
    assert book.total.requests == 200


def test_the_busiest_have_a_series_and_no_counter_ever_falls() -> None:
    clock, book, registry = Clock(), UsageBook(0.0, most_records=6), CollectorRegistry()
    registry.register(UsageCollector(book, clock, most_clients=2))
    last: dict[tuple[str, str], float] = {}
    for turn in range(12):
        for i in range(8):
            for _ in range(1 + 3 * ((i + turn // 4) % 8)):
                book.count_request(tenant(f"c{i}"), CHAT, Usage(7, 2, 3))
        clock.now += CHOICE_SECONDS / 2
        samples = [s for family in registry.collect() for s in family.samples]
        series = {(s.labels["client"], s.labels.get("kind", s.name)): s.value for s in samples}
        assert len({client for client, _ in series}) <= 3
        for key in series.keys() & last.keys():
            assert series[key] >= last[key], key
        last = series
    assert {client for client, _ in last} >= {"other"}
    assert all(value >= 0 for value in last.values())


def test_no_series_is_left_out_of_the_sum_before_one_ends() -> None:
    clock, book, registry = Clock(), UsageBook(0.0), CollectorRegistry()
    collector = UsageCollector(book, clock)
    registry.register(collector)
    for i in range(3):
        book.count_request(tenant(f"c{i}"), CHAT, Usage(10, 0, 0))
    samples = [s for family in registry.collect() for s in family.samples if s.labels.get("kind") == "prompt"]
    assert sum(s.value for s in samples) == 30
    clock.now += CHOICE_SECONDS
    book.count_request(tenant("c0"), CHAT, Usage(10, 0, 0))
    samples = [s for family in registry.collect() for s in family.samples if s.labels.get("kind") == "prompt"]
    assert sum(s.value for s in samples) == 40
    assert {s.labels["client"]: s.value for s in samples}["c0"] == 10
