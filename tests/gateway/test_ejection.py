"""Which replicas a gateway avoids after failures and errors, and which it tries again."""

from dataclasses import replace

import pytest

from millrace_gateway.route.balance import NUM_GONE, Balancer
from millrace_gateway.route.ejection import (
    MOST_ERRORS,
    MOST_SUSPECTS,
    OTHERS_SECONDS,
    PROBE_SECONDS,
    TOLERATED_SECONDS,
)
from millrace_gateway.route.objects import Replica, ServiceKey
from testing.gateway_bench import build_replicas, counted

REPLICAS = build_replicas(3)


def fail(balancer: Balancer, replica: Replica, now: float, *, is_refusal: bool = True) -> None:
    """Send the replica a request that it refuses, or breaks off."""
    with counted(balancer, replica):
        balancer.note_failure(replica, now, is_refusal=is_refusal)


def answer(balancer: Balancer, replica: Replica, now: float) -> None:
    """Send the replica a generation that ends as it should."""
    with counted(balancer, replica):
        balancer.note_answer(replica, 200, now)
        balancer.note_whole(replica)


def err(balancer: Balancer, replica: Replica, now: float) -> None:
    """Send the replica as many requests that end with errors as eject it."""
    with counted(balancer, replica):
        for _ in range(MOST_ERRORS):
            balancer.note_answer(replica, 500, now)


def test_one_that_fails_comes_last_for_longer_each_time_until_an_answer_is_whole() -> None:
    balancer, failing = Balancer(2.0), REPLICAS[0]
    begin = 100.0
    with counted(balancer, REPLICAS[1]), counted(balancer, REPLICAS[2]):
        for seconds in (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.0):
            fail(balancer, failing, begin)
            balancer.note_failure(failing, begin + 0.1)  # one that it had before: the time is no longer
            assert balancer.pick(REPLICAS, (), begin + seconds - 0.01) != failing
            assert balancer.pick(REPLICAS, {"p1", "p2"}, begin + seconds - 0.01) == failing
            begin += seconds
            assert balancer.pick(REPLICAS, (), begin) == failing
            balancer.note_answer(failing, 200, begin)  # it begins an answer, and breaks off
        assert balancer.pick(REPLICAS, (), begin) == failing
        answer(balancer, failing, begin)
        fail(balancer, failing, begin)
        assert balancer.pick(REPLICAS, (), begin + 2.0) == failing


def test_errors_in_a_row_are_a_failure_and_one_among_answers_is_none() -> None:
    balancer, failing = Balancer(2.0), REPLICAS[0]
    for status in (*(500, 200) * MOST_ERRORS, *[503] * (MOST_ERRORS - 1), 200):
        balancer.note_answer(failing, status, 1.0)
        assert not balancer.is_ejected("p0", 1.0)
    for _ in range(MOST_ERRORS):
        balancer.note_answer(failing, 500, 1.0)
        balancer.note_answer(failing, 400, 1.0)  # a broken engine refuses what is wrong, as before
        balancer.note_answer(failing, 200, 1.0, is_generation=False)  # and counts tokens
    assert balancer.is_ejected("p0", 2.9)
    assert not balancer.is_ejected("p0", 3.0)
    balancer.note_answer(failing, 500, 3.0)  # to the one request that tries it
    assert balancer.is_ejected("p0", 6.9)
    balancer.note_answer(failing, 200, 7.0)
    assert not balancer.is_ejected("p0", 7.0)
    balancer.note_failure(failing, 8.0, is_refusal=True)
    balancer.note_answer(failing, 400, 8.0)
    assert not balancer.is_ejected("p0", 8.0)
    balancer.note_failure(failing, 9.0)  # it broke off
    for asked_at, is_ejected in ((8.9, True), (9.0, False)):
        balancer.note_answer(failing, 200, 9.1, is_generation=False, asked_at=asked_at)
        assert balancer.is_ejected("p0", 9.1) == is_ejected


def test_errors_of_all_replicas_may_be_the_requests_own() -> None:
    """Requests that always fail must not crowd the others' into what is left."""
    balancer = Balancer(2.0)
    for replica in REPLICAS:
        answer(balancer, replica, 0.0)
    err(balancer, REPLICAS[0], 1.0)  # the others err never
    assert {balancer.pick(REPLICAS, (), 1.0) for _ in range(6)} == {*REPLICAS[1:]}
    err(balancer, REPLICAS[1], 1.0)
    balancer.note_answer(REPLICAS[2], 500, 1.0)
    assert {balancer.pick(REPLICAS, (), 1.0) for _ in range(6)} == {*REPLICAS}
    assert balancer.find_shares(REPLICAS, 1.0) == dict.fromkeys(("p0", "p1", "p2"), 1.0)
    preferred = balancer.pick(REPLICAS, (), 1.0, lambda candidates: candidates[0].replica.uid)
    assert preferred == REPLICAS[0]


@pytest.mark.parametrize("is_lost", [True, False])
def test_one_that_is_lost_or_hangs_is_no_measure_for_the_errors_of_others(*, is_lost: bool) -> None:
    balancer, now = Balancer(2.0), TOLERATED_SECONDS
    answer(balancer, REPLICAS[2], 0.0)
    for replica in REPLICAS[:2]:
        answer(balancer, replica, now)
        err(balancer, replica, now)
    if is_lost:
        answer(balancer, REPLICAS[2], now)
        fail(balancer, REPLICAS[2], now)
    with counted(balancer, REPLICAS[2]):
        assert {balancer.pick(REPLICAS, (), now).uid for _ in range(6)} >= {"p0", "p1"}  # type: ignore[union-attr]


def test_most_replicas_break_off_and_are_tried_ever_less() -> None:
    """What one of them breaks off is its client's answer, and no other replica gets it."""
    balancer, good = Balancer(2.0), REPLICAS[2]
    num_broken = 0
    for number in range(600):  # two each second, for five minutes
        picked = balancer.pick(REPLICAS, (), now := number / 2)
        assert picked is not None
        if picked == good:
            answer(balancer, good, now)
        else:
            fail(balancer, picked, now, is_refusal=False)
            num_broken += 1
    assert num_broken <= 2 * 9  # after 0, 2, 6, 14, 30, 62, 126, 190 and 254 s


def test_late_breaks_of_old_requests_do_not_hide_that_new_ones_are_answered() -> None:
    """After an outage the replicas that erred were preferred to those that were well again."""
    balancer = Balancer(2.0)
    fail(balancer, REPLICAS[0], 0.0, is_refusal=False)
    fail(balancer, REPLICAS[0], 2.5, is_refusal=False)  # of a request from before
    balancer.note_answer(REPLICAS[0], 200, 3.0, asked_at=2.0)
    assert not balancer.is_ejected("p0", 3.0)
    err(balancer, REPLICAS[0], 4.0)
    balancer.note_answer(REPLICAS[0], 200, 5.0, asked_at=3.9)
    assert balancer.is_ejected("p0", 5.0)


def test_the_requests_own_errors_do_not_make_an_ejection_longer() -> None:
    balancer = Balancer(2.0)
    for now in (0.0, 10.0, 20.0, 30.0):
        err(balancer, REPLICAS[0], now)
        assert balancer.is_ejected("p0", now + 1.9)
        assert not balancer.is_ejected("p0", now + 2.0)
        balancer.note_answer(REPLICAS[0], 200, now + 2.0)  # it goes on for long


def test_a_tolerated_replica_is_no_idle_home_of_a_conversation() -> None:
    balancer, offered = Balancer(2.0), []
    for replica in REPLICAS[:2]:
        answer(balancer, replica, 0.0)
        err(balancer, replica, 0.0)
    balancer.note_answer(REPLICAS[2], 200, 0.0)
    balancer.note_answer(REPLICAS[2], 500, 0.0)
    with counted(balancer, REPLICAS[2]), counted(balancer, REPLICAS[2]):
        balancer.pick(REPLICAS, (), 1.0, offered.extend)
    assert [(one.replica.uid, one.num_own) for one in offered] == [("p0", 2), ("p1", 2), ("p2", 2)]


def test_an_error_does_not_hide_a_refusal() -> None:
    balancer = Balancer(2.0)
    for replica in REPLICAS[:2]:
        answer(balancer, replica, 0.0)
        err(balancer, replica, 0.0)
    fail(balancer, REPLICAS[0], 1.0)
    assert REPLICAS[0] not in {balancer.pick(REPLICAS, (), 1.0) for _ in range(6)}


def test_when_most_have_failed_each_is_tried_again_soon() -> None:
    """The fault may be the gateway's own, and the first few that are tried would get all requests."""
    balancer, replicas = Balancer(2.0), build_replicas(8)
    for now in (0.0, 2.0, 6.0, 14.0, 30.0):
        for replica in replicas:
            fail(balancer, replica, now)
    used = set()
    for number in range(30):
        picked = balancer.pick(replicas, (), now := 32.0 + number / 10)
        assert picked is not None
        balancer.note_answer(picked, 200, now)
        balancer.begin(picked)
        used.add(picked.uid)
    assert len(used) == 8


def test_one_request_alone_tries_a_replica_again() -> None:
    balancer = Balancer(2.0)
    fail(balancer, REPLICAS[0], 100.0)
    with counted(balancer, REPLICAS[1]), counted(balancer, REPLICAS[2]):
        picked = [balancer.pick(REPLICAS, (), 102.0 + now) for now in (0.0, 0.1, PROBE_SECONDS - 0.1)]
        assert [replica == REPLICAS[0] for replica in picked] == [True, False, False]
        later = balancer.pick(REPLICAS, (), 102.0 + PROBE_SECONDS)
        assert later == REPLICAS[0]  # it never got it, or is slow


def test_a_request_that_proves_nothing_lets_the_next_one_try() -> None:
    balancer, failing = Balancer(2.0), REPLICAS[0]
    err(balancer, failing, 100.0)
    with counted(balancer, REPLICAS[1]), counted(balancer, REPLICAS[2]):
        for status in (400, 422):
            assert balancer.pick(REPLICAS, (), 102.0) == failing
            balancer.note_answer(failing, status, 102.0)
        assert balancer.pick(REPLICAS, (), 102.0) == failing
        balancer.note_nothing(failing)  # its client has left
        assert balancer.pick(REPLICAS, (), 102.0) == failing
        assert balancer.pick(REPLICAS, (), 102.0) != failing


def test_when_all_fail_the_one_that_failed_the_longest_ago_is_asked() -> None:
    balancer = Balancer(2.0)
    for number, replica in enumerate(REPLICAS):
        fail(balancer, replica, float(number) / 10)
    assert balancer.pick(REPLICAS, (), 1.0) == REPLICAS[0]
    fail(balancer, REPLICAS[0], 1.0)
    assert balancer.pick(REPLICAS, (), 1.1) == REPLICAS[1]
    leaving = replace(REPLICAS[1], is_leaving=True)
    assert balancer.pick([REPLICAS[0], leaving, REPLICAS[2]], (), 1.1) == REPLICAS[2]


def test_one_that_leaves_comes_before_one_that_errs_and_behind_one_that_refuses() -> None:
    """Another replica gets what one refuses; an error is the client's answer."""
    balancer = Balancer(2.0)
    leaving = replace(REPLICAS[2], is_leaving=True)
    fail(balancer, REPLICAS[0], 1.0)
    assert balancer.pick([REPLICAS[0], leaving], (), 1.0) == REPLICAS[0]
    fail(balancer, REPLICAS[0], 1.0, is_refusal=False)
    assert balancer.pick([REPLICAS[0], leaving], (), 1.0) == leaving
    err(balancer, REPLICAS[1], 1.0)
    assert balancer.pick([REPLICAS[1], leaving], (), 1.0) == leaving


def test_of_those_that_may_be_well_again_the_least_loaded_is_asked() -> None:
    """An answer that begins at its end tells nothing for long, and one replica got all requests."""
    balancer = Balancer(2.0)
    for replica in REPLICAS:
        err(balancer, replica, 0.0)
    picked = []
    for number in range(9):
        replica = balancer.pick(REPLICAS, (), 2.0 + number / 10)
        assert replica is not None
        balancer.begin(replica)
        picked.append(replica.uid)
    assert [picked.count(uid) for uid in ("p0", "p1", "p2")] == [3, 3, 3]
    balancer.note_answer(REPLICAS[1], 500, 3.0)  # to the request that tries it
    assert balancer.pick(REPLICAS, (), 3.0) in (REPLICAS[0], REPLICAS[2])


def test_a_container_that_was_restarted_is_not_the_one_that_failed() -> None:
    balancer = Balancer(2.0)
    err(balancer, REPLICAS[0], 100.0)
    restarted = replace(REPLICAS[0], ready_at=101.0)
    replicas = [restarted, *REPLICAS[1:]]
    assert balancer.find_shares(replicas, 101.0).keys() == {"p0", "p1", "p2"}
    assert not balancer.is_ejected("p0", 101.0)


def test_what_is_gone_is_forgotten_also_if_its_last_requests_fail_later() -> None:
    balancer = Balancer(2.0)
    with counted(balancer, REPLICAS[0]):
        balancer.forget("p0")
        err(balancer, REPLICAS[0], 0.0)
        assert balancer.count_all() == {"p0": 1}
    for number in range(NUM_GONE):
        balancer.forget(f"other-{number}")
    assert (balancer.count_all(), balancer._standings, balancer._doubted) == ({}, {}, {})


def err_as(balancer: Balancer, tenant: str, *replicas: Replica, now: float = 1.0) -> None:
    """Let a tenant's requests fail at these replicas, one after the other."""
    for replica in replicas:
        balancer.note_answer(replica, 500, now, tenant=tenant)


def test_errors_that_a_client_alone_gets_at_several_replicas_are_its_own() -> None:
    balancer, (first, second, _) = Balancer(2.0), REPLICAS
    for replica in (first, second):
        for tenant in ("ada", "bob"):
            balancer.note_answer(replica, 200, 0.0, tenant=tenant)
    err_as(balancer, "ada", *[first, second] * 50)
    assert not any(balancer.is_ejected(uid, 1.0) for uid in ("p0", "p1"))
    err_as(balancer, "bob", first)
    err_as(balancer, "ada", *[first] * (MOST_ERRORS - 3))
    assert not balancer.is_ejected("p0", 1.0)  # the first error of each counts, and these
    err_as(balancer, "ada", first)
    assert balancer.is_ejected("p0", 1.0)
    assert not balancer.is_ejected("p1", 1.0)


def test_errors_that_a_client_gets_at_one_replica_alone_are_the_replicas() -> None:
    balancer, (failing, other, _) = Balancer(2.0), REPLICAS
    balancer.note_answer(failing, 200, 1.0, tenant="bob")
    err_as(balancer, "ada", other)
    balancer.note_answer(other, 200, 1.0, tenant="ada")
    err_as(balancer, "ada", *[failing] * MOST_ERRORS)
    assert balancer.is_ejected("p0", 1.0)


def test_a_clients_own_errors_are_the_replicas_where_nobody_else_has_just_been_served() -> None:
    balancer, now = Balancer(2.0), OTHERS_SECONDS
    for replica in REPLICAS:
        balancer.note_answer(replica, 200, 0.0, tenant="bob")
        balancer.note_answer(replica, 200, now, tenant="ada")
    err_as(balancer, "ada", REPLICAS[1], *[REPLICAS[0]] * MOST_ERRORS, now=now)
    assert balancer.is_ejected("p0", now)


def test_a_client_of_two_services_is_two_clients() -> None:
    balancer, elsewhere = Balancer(2.0), replace(REPLICAS[1], key=ServiceKey("a", "other"))
    balancer.note_answer(REPLICAS[0], 200, 1.0, tenant="bob")
    err_as(balancer, "ada", elsewhere, *[REPLICAS[0]] * MOST_ERRORS)
    assert balancer.is_ejected("p0", 1.0)


def test_of_any_number_of_clients_that_err_few_are_kept() -> None:
    balancer = Balancer(2.0)
    for number in range(2 * MOST_SUSPECTS):
        err_as(balancer, f"client-{number}", REPLICAS[0])
    assert len(balancer._suspects._first) <= MOST_SUSPECTS
