"""Whole stories: after outages, with broken replicas, and with clients whose requests fail, who is served."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import NamedTuple

import pytest

from millrace_gateway.route.balance import Balancer
from millrace_gateway.route.objects import Replica
from testing.gateway_bench import build_replicas


class Answer(NamedTuple):
    """What a replica does with a request."""

    status: int | None = 200
    """None: it refuses, or closes the connection before it answers."""
    begins: float = 0.2
    """So many seconds later,"""
    ends: float = 2.0
    """and ends so late."""
    is_whole: bool = True
    is_refusal: bool = False


GOOD, LONG = Answer(), Answer(begins=15.0, ends=15.0)
"""A stream, and an answer that begins at its end."""
ERROR = Answer(500, 0.01, 0.01)
REFUSAL = Answer(None, 0.01, 0.01, is_whole=False, is_refusal=True)
DEATH = Answer(None, 0.01, 0.01, is_whole=False)
BREAK = Answer(200, 0.1, 0.5, is_whole=False)
Behaviour = Callable[[int, float, str], Answer]


class Ended(NamedTuple):
    """One request that has got an answer."""

    at: float
    """When it was sent first."""
    tenant: str
    uid: str
    is_good: bool


class Script:
    """Sends requests to replicas that do what a test says: by replica, time and tenant."""

    def __init__(self, num_replicas: int, behave: Behaviour) -> None:
        self.balancer = Balancer(2.0)
        self.replicas = build_replicas(num_replicas)
        self.ended: list[Ended] = []
        self._behave = behave
        self._numbers = count()
        self._events: list[tuple[float, int, Iterator[float]]] = []

    def send(self, tenant: str, rate: float, begin: float, end: float) -> None:
        """Have a tenant send so many requests a second."""
        for number in range(int((end - begin) * rate)):
            self._wake(begin + number / rate, self._request(begin + number / rate, tenant))

    def run(self) -> None:
        """Let everything happen."""
        while self._events:
            _, _, request = heapq.heappop(self._events)
            wake_at = next(request, None)
            if wake_at is not None:
                self._wake(wake_at, request)

    def find_failed(self, begin: float, end: float, tenant: str) -> float:
        """Return the part of a tenant's requests of this time that failed."""
        found = [one.is_good for one in self.ended if begin <= one.at < end and one.tenant == tenant]
        return found.count(False) / len(found)

    def find_largest_part(self, begin: float, end: float) -> float:
        """Return the part of all requests of this time that the busiest replica had."""
        found = Counter(one.uid for one in self.ended if begin <= one.at < end)
        return max(found.values()) / found.total()

    def _wake(self, at: float, request: Iterator[float]) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), request))

    def _request(self, at: float, tenant: str) -> Iterator[float]:
        balancer, now, tried = self.balancer, at, set[str]()
        while replica := balancer.pick(self.replicas, tried, now):
            says, asked_at = self._behave(int(replica.uid[1:]), now, tenant), now
            balancer.begin(replica)
            yield (now := asked_at + says.begins)
            if says.status is not None:
                balancer.note_answer(replica, says.status, now, asked_at=asked_at, tenant=tenant)
                yield (now := asked_at + says.ends)
            balancer.end(replica)
            if says.is_whole and says.status == 200:
                balancer.note_whole(replica)
            elif not says.is_whole:
                balancer.note_failure(replica, now, is_refusal=says.is_refusal)
            if not says.is_refusal:
                self.ended.append(Ended(at, tenant, replica.uid, says in (GOOD, LONG)))
                return
            tried.add(replica.uid)


def play(num_replicas: int, behave: Behaviour, end: float, **rates: float) -> Script:
    """Return the script once it has been played, with so many requests a second by tenant."""
    script = Script(num_replicas, behave)
    for tenant, rate in rates.items():
        script.send(tenant, rate, 0.0, end)
    script.run()
    return script


@pytest.mark.parametrize("answer", [GOOD, LONG])
@pytest.mark.parametrize("failure", [REFUSAL, DEATH, ERROR])
@pytest.mark.parametrize("seconds", [10.0, 30.0, 130.0])
def test_after_an_outage_of_all_none_gets_the_requests_of_all(
    failure: Answer, seconds: float, answer: Answer
) -> None:
    end = 10.0 + seconds
    script = play(8, lambda _, at, __: failure if 10.0 <= at < end else answer, end + 40.0, ada=40.0)
    assert script.find_failed(end, end + 40.0, "ada") == 0
    for begin in (end, end + 10.0, end + 20.0, end + 30.0):
        assert script.find_largest_part(begin, begin + 10.0) < 0.25


def test_an_outage_ends_where_others_were_broken_before() -> None:
    """Those that are well again go on, and the broken ones are tried ever less."""

    def behave(replica: int, at: float, _: str) -> Answer:
        return DEATH if replica < 2 or 60.0 <= at < 90.0 else GOOD

    script = play(4, behave, 300.0, ada=20.0)
    assert script.find_failed(30.0, 60.0, "ada") < 0.01
    assert script.find_failed(91.0, 120.0, "ada") < 0.05
    assert script.find_failed(200.0, 300.0, "ada") < 0.005


def nine_of_ten(failure: Answer) -> Callable[[], Answer]:
    """Return what fails but each tenth time."""
    numbers = count(1)
    return lambda: GOOD if next(numbers) % 10 == 0 else failure


@pytest.mark.parametrize(("num_replicas", "num_broken"), [(3, 2), (8, 5), (4, 1)])
def test_replicas_that_err_nine_times_in_ten_are_broken_also_if_most_do(
    num_replicas: int, num_broken: int
) -> None:
    draws = [nine_of_ten(ERROR) for _ in range(num_broken)]
    script = play(
        num_replicas, lambda replica, *_: draws[replica]() if replica < num_broken else GOOD, 100.0, ada=20.0
    )
    assert script.find_failed(5.0, 100.0, "ada") < 0.05


def test_a_replica_that_breaks_off_and_errs_is_tried_ever_less() -> None:
    """An error that is over ended the doubling of its breaks."""
    kinds = count()

    def behave(replica: int, *_: object) -> Answer:
        return (ERROR, BREAK)[next(kinds) % 2] if replica == 0 else GOOD

    script = play(4, behave, 300.0, ada=20.0)
    assert script.find_failed(100.0, 300.0, "ada") < 0.02


def test_long_answers_from_before_do_not_make_a_broken_replica_good() -> None:
    """It ended them well for a quarter of a minute, and got most of the new requests: an error is quick."""
    script = play(4, lambda replica, at, _: ERROR if replica == 0 and at >= 20 else LONG, 60.0, ada=20.0)
    assert script.find_failed(20.0, 35.0, "ada") < 0.05


@pytest.mark.parametrize("rate", [5.0, 40.0, 200.0])
@pytest.mark.parametrize("others_rate", [4.0, 10.0])
@pytest.mark.parametrize("num_replicas", [2, 4])
def test_the_errors_of_one_client_eject_nothing_that_serves_others(
    num_replicas: int, others_rate: float, rate: float
) -> None:
    script = Script(num_replicas, lambda *of: ERROR if of[2] == "mallory" else GOOD)
    ejected = []
    script.balancer.note_answer = watch(script, ejected)  # type: ignore[method-assign]
    script.send("ada", others_rate, 0.0, 60.0)
    script.send("bob", others_rate / 2, 0.0, 60.0)
    script.send("mallory", rate, 10.0, 60.0)
    script.run()
    assert not ejected


def watch(script: Script, ejected: list[str]) -> Callable[..., None]:
    """Return a `note_answer` that records who is ejected after it."""
    note = script.balancer.note_answer

    def note_answer(replica: Replica, status: int, now: float, **more: object) -> None:
        note(replica, status, now, **more)  # type: ignore[arg-type]
        ejected.extend(one.uid for one in script.replicas if script.balancer.is_ejected(one.uid, now))

    return note_answer


@pytest.mark.parametrize("answer", [GOOD, LONG])
@pytest.mark.parametrize(("others_rate", "others_end"), [(5.0, 20.0), (1.0, 60.0)])
def test_a_broken_replica_is_ejected_at_once_also_if_one_client_sends_most(
    others_rate: float, others_end: float, answer: Answer
) -> None:
    """Its errors were that client's own, since it had just served another: up to half of all failed."""
    script = Script(4, lambda replica, at, _: ERROR if replica == 0 and at >= 20 else answer)
    script.send("ada", 20.0, 0.0, 60.0)
    script.send("bob", others_rate, 0.0, others_end)
    script.run()
    assert script.find_failed(20.0, 60.0, "ada") < 0.02


def test_without_keys_errors_that_all_replicas_give_eject_none() -> None:
    def behave(_: int, at: float, tenant: str) -> Answer:
        return ERROR if tenant == "mallory" and at >= 10 else GOOD

    script, judged = Script(4, behave), Counter[int]()
    note = script.balancer.note_answer

    def note_answer(replica: Replica, status: int, now: float, asked_at: float, **_: object) -> None:
        note(replica, status, now, asked_at=asked_at)
        judged[len(script.balancer.find_shares(script.replicas, now))] += 1

    script.balancer.note_answer = note_answer  # type: ignore[method-assign, assignment]
    script.send("ada", 15.0, 0.0, 60.0)
    script.send("mallory", 40.0, 0.0, 60.0)
    script.run()
    assert judged[4] > 0.95 * judged.total()
