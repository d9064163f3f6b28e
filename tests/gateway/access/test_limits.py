import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_gateway.access.errors import RateLimitedError
from millrace_gateway.access.identity import Client, Tenant
from millrace_gateway.access.limits.ledger import Ledger
from millrace_gateway.access.limits.limiter import Limiter, estimate_tokens, format_seconds
from millrace_gateway.access.limits.reservation import Reservation, Usage
from millrace_gateway.access.policy import AccessPolicy, RateLimit, Scope
from millrace_gateway.route.objects import ServiceKey
from testing.limited_gateways import CLIENT, SERVICE, Clock

BOB = Client(Tenant("a", "keys", "bob"))


def policy(*limits: RateLimit) -> AccessPolicy:
    return AccessPolicy(needs_key=True, rate_limits=limits)


class Desk:
    """One gateway's limiter."""

    def __init__(self, *limits: RateLimit) -> None:
        self.clock = Clock()
        self.ledger = Ledger(self.clock)
        self.limiter = Limiter(self.ledger)
        self.policy = policy(*limits)

    def admit(
        self, tokens: int = 1, client: Client | None = CLIENT, service: ServiceKey = SERVICE
    ) -> Reservation:
        return self.limiter.admit(client, service, self.policy, tokens)

    def refuse(self, tokens: int = 1, client: Client | None = CLIENT) -> RateLimitedError:
        with pytest.raises(RateLimitedError) as caught:
            self.admit(tokens, client)
        return caught.value


def test_requests_a_minute_and_when_the_next_one_passes() -> None:
    desk = Desk(RateLimit(Scope.KEY, requests_per_minute=3))
    for remaining in (2, 1, 0):
        headers = desk.admit().headers()
        assert headers["x-ratelimit-limit-requests"] == "3"
        assert headers["x-ratelimit-remaining-requests"] == str(remaining)
        assert "x-ratelimit-limit-tokens" not in headers
    refusal = desk.refuse()
    assert refusal.message == "Rate limit reached for this API key: 3 requests per minute. Try again in 20s."
    assert refusal.headers == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
        "Retry-After": "20",
        "retry-after-ms": "20000",
    }
    desk.clock.now += 19.9
    desk.refuse()
    desk.clock.now += 0.1
    desk.admit()
    desk.refuse()
    desk.admit(client=BOB)


def test_tokens_are_reserved_by_estimate_and_settled_by_use() -> None:
    desk = Desk(RateLimit(Scope.KEY, tokens_per_minute=600))
    less, more = desk.admit(300), desk.admit(300)
    assert more.headers()["x-ratelimit-remaining-tokens"] == "0"
    assert desk.refuse(1).wait_seconds == pytest.approx(0.1)
    less.settle(Usage(40, 20, 60))
    assert desk.admit(200)
    more.settle(Usage(500, 0, 100))
    refusal = desk.refuse(100)
    assert refusal.wait_seconds == pytest.approx(40)
    assert refusal.headers["x-ratelimit-remaining-tokens"] == "0"


def test_a_stream_is_charged_as_it_goes() -> None:
    desk = Desk(RateLimit(Scope.KEY, tokens_per_minute=600))
    stream = desk.admit(100)
    stream.observe(Usage(20, 0, 30))
    desk.admit(500).release()
    stream.observe(Usage(20, 0, 400))
    assert desk.refuse(181).wait_seconds == pytest.approx(0.1)
    stream.settle(None)
    assert desk.admit(180)


def test_what_was_not_begun_is_given_back_and_what_nobody_knows_stays() -> None:
    desk = Desk(RateLimit(Scope.KEY, 2, 100, 1))
    desk.admit(80).release()
    desk.admit(80).settle(None)
    assert desk.refuse(21).wait_seconds == pytest.approx(0.6)
    desk.admit(20).settle(Usage(1, 0, 1))
    assert desk.refuse(1).message.count("2 requests per minute")


def test_a_request_that_waits_and_leaves_gets_back_only_what_time_has_not() -> None:
    """Else a client saves up the limits of all the minutes that it waits for a replica."""
    desk = Desk(RateLimit(Scope.KEY, requests_per_minute=2))
    waiting = []
    for _ in range(3):
        waiting += [desk.admit(), desk.admit()]
        desk.clock.now += 60
    desk.admit(), desk.admit()
    for reservation in waiting:
        reservation.release()
    desk.refuse()


def test_requests_at_once() -> None:
    desk = Desk(RateLimit(Scope.SERVICE, concurrency=2))
    first, _ = desk.admit(), desk.admit(client=BOB)
    refusal = desk.refuse()
    assert (refusal.message.split(":")[0], refusal.headers["Retry-After"]) == (
        "Rate limit reached for this service",
        "1",
    )
    first.settle(None)
    desk.admit()


def test_a_refused_request_takes_nothing_of_any_limit() -> None:
    desk = Desk(RateLimit(Scope.KEY, 10), RateLimit(Scope.SERVICE, 1))
    desk.admit(client=BOB)
    for _ in range(20):
        desk.refuse()
    desk.clock.now += 60
    assert desk.admit().headers()["x-ratelimit-remaining-requests"] == "9"


def test_a_client_sees_the_services_figures_only_where_there_are_no_keys() -> None:
    desk = Desk(RateLimit(Scope.SERVICE, 5))
    assert desk.admit().headers() == {}
    desk.admit(client=None)
    assert desk.admit(client=None).headers()["x-ratelimit-remaining-requests"] == "2"
    assert Desk(RateLimit(Scope.KEY, 5)).admit(client=None).headers() == {}


def test_a_clients_own_limits_replace_those_per_key_and_no_others() -> None:
    desk = Desk(RateLimit(Scope.KEY, 1), RateLimit(Scope.SERVICE, 3))
    rich = Client(CLIENT.tenant, rate_limits=(RateLimit(Scope.KEY, 9),))
    for _ in range(3):
        desk.admit(client=rich)
    assert desk.refuse(client=rich).message.startswith("Rate limit reached for this service")


def test_a_request_above_the_whole_limit_waits_for_a_full_bucket() -> None:
    desk = Desk(RateLimit(Scope.KEY, tokens_per_minute=600))
    desk.admit(1).settle(None)
    assert desk.refuse(10**12).wait_seconds == pytest.approx(0.1)
    desk.clock.now += 0.1
    large = desk.admit(10**12)
    large.settle(Usage(1200, 0, 0))
    assert desk.refuse(1).wait_seconds == pytest.approx(60.1)


def test_services_do_not_share_a_clients_limit() -> None:
    desk = Desk(RateLimit(Scope.KEY, 1))
    desk.admit()
    desk.admit(service=ServiceKey("a", "code"))


def test_a_limit_that_changes_keeps_what_was_used() -> None:
    desk = Desk(RateLimit(Scope.KEY, 10))
    for _ in range(10):
        desk.admit().settle(None)
    desk.policy = policy(RateLimit(Scope.KEY, 60))
    assert desk.admit().headers()["x-ratelimit-remaining-requests"] == "49"
    desk.policy = policy(RateLimit(Scope.KEY, 5))
    desk.refuse()


def test_memory_is_that_of_the_clients_of_the_last_minute() -> None:
    desk = Desk(RateLimit(Scope.KEY, 60, 600, 5), RateLimit(Scope.SERVICE, 60_000))
    for i in range(1000):
        desk.admit(10, Client(Tenant("a", "keys", f"c{i}"))).settle(Usage(10, 0, 0))
    assert len(desk.ledger) == 1001
    held = desk.admit(10)
    desk.clock.now += 120
    for _ in range(40):
        desk.ledger.forget_some(desk.ledger.version)
    assert len(desk.ledger) == 2
    held.settle(None)
    desk.ledger.check_integrity()


@given(
    st.lists(
        st.tuples(st.sampled_from(["admit", "settle", "release", "wait"]), st.integers(0, 300)), max_size=60
    )
)
def test_no_time_has_more_use_than_its_limit(moves: list[tuple[str, int]]) -> None:
    desk = Desk(RateLimit(Scope.KEY, None, 600, 4))
    held: list[tuple[Reservation, int]] = []
    used, begin = 0, desk.clock.now
    for kind, amount in moves:
        if kind == "wait":
            desk.clock.now += amount / 10
        elif kind == "admit":
            with suppress(RateLimitedError):
                held.append((desk.admit(amount), amount))
                used += amount
                assert used <= 600 + (desk.clock.now - begin) * 10 + 1e-3
                assert len(held) <= 4
                assert 0 <= int(held[-1][0].headers()["x-ratelimit-remaining-tokens"]) <= 600 - amount
        elif held and kind == "settle":
            held.pop()[0].settle(None)
        elif held:
            reservation, reserved = held.pop()
            reservation.release()
            used -= reserved
        desk.ledger.check_integrity()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.0171, "18ms"),
        (1.5, "1.5s"),
        (59.96, "1m0s"),
        (59.9, "59.9s"),
        (360, "6m0s"),
        (3661, "1h1m1s"),
    ],
)
def test_times_as_openais_headers_have_them(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
    assert re.fullmatch(r"(\d+h)?(\d+m)?(\d+(\.\d)?m?s)", text)


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        ((400, 100, 1), 200),
        ((400, None, 2), 612),
        ((0, 0, 0), 1),
        ((3, -5, 1), 1),
        ((0, 10, 3), 31),
        ((0, 2**31, 2), 2**21 + 1),
    ],
)
def test_estimates(arguments: tuple[int, int | None, int], tokens: int) -> None:
    assert estimate_tokens(*arguments) == tokens
