from prometheus_client import CollectorRegistry

from millrace_gateway.access.identity import Tenant
from millrace_gateway.access.limits.reservation import Usage
from millrace_gateway.access.usage import UsageBook
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
