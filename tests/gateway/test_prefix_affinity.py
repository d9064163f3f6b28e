"""The choice of a replica by the beginning of a request."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from millrace_gateway.route.prefix_affinity import (
    BOUND,
    BOUND_REQUESTS,
    GENERATION_REQUESTS,
    Affinity,
    Candidate,
    find_load,
)

FOUR = [Candidate(f"uid-{number}", 0.0) for number in range(4)]


def choose_again(affinity: Affinity, key: int, replicas: list[Candidate], conversation: int = 7) -> str:
    """The choice for a beginning that is known."""
    affinity.choose((key, conversation), replicas)
    return affinity.choose((key, conversation), replicas)


def test_two_gateways_agree_and_a_new_replica_moves_its_share_alone() -> None:
    one, two = Affinity(), Affinity()
    five = [*reversed(FOUR), Candidate("uid-new", 0.0)]
    keys = [key * 0x9E3779B1 for key in range(1, 2001)]
    before = [choose_again(one, key, FOUR, conversation=key) for key in keys]
    assert before == [choose_again(two, key, FOUR[::-1], conversation=key) for key in keys]
    shares = Counter(before)
    assert all(0.2 < number / len(keys) < 0.3 for number in shares.values())
    after = [choose_again(two, key, five, conversation=key) for key in keys]
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {"uid-new"}
    assert 0.15 < len(moved) / len(keys) < 0.25


def test_a_popular_beginning_has_several_homes_and_each_conversation_one() -> None:
    affinity = Affinity()
    for key in range(60):  # so that no beginning has all the traffic
        affinity.choose((key, 0), FOUR)
    rare = {choose_again(affinity, 1, FOUR, conversation) for conversation in range(3)}
    assert len(rare) == 1
    homes = [
        {choose_again(affinity, 99, FOUR, conversation) for _ in range(5)} for conversation in range(200)
    ]
    assert {len(home) for home in homes[100:]} == {1}
    assert len(set[str].union(*homes)) == 4


def test_a_beginning_that_is_new_goes_to_the_idlest() -> None:
    loads = [Candidate("a", 3.0), Candidate("b", 2.0), Candidate("c", 2.5)]
    assert {Affinity().choose((key, 1), loads) for key in range(50)} == {"b"}
    assert Affinity().choose((), loads) == "b"
    affinity = Affinity()
    affinity.choose((1, 1), loads)
    for key in range(2, 2 * GENERATION_REQUESTS + 2):
        affinity.choose((key, 1), FOUR)
    assert affinity.choose((1, 1), loads) == "b"  # it is forgotten


def test_a_session_has_one_home_whatever_it_begins_with() -> None:
    affinity = Affinity()
    assert len({affinity.choose((key, key), FOUR, session=5) for key in range(50)}) == 1
    assert len({affinity.choose((1, 1), FOUR, session=session) for session in range(50)}) == 4


@given(
    loads=st.lists(st.floats(0, 1000), min_size=1, max_size=8),
    shares=st.lists(st.floats(0.01, 1), min_size=8, max_size=8),
    key=st.integers(0, 2**32 - 1),
    session=st.none() | st.integers(0, 2**64 - 1),
)
def test_the_load_of_the_chosen_one_is_within_the_bound_if_any_is(
    loads: list[float], shares: list[float], key: int, session: int | None
) -> None:
    replicas = [
        Candidate(f"uid-{number}", load, share)
        for number, (load, share) in enumerate(zip(loads, shares, strict=False))
    ]
    affinity = Affinity()
    affinity.choose((key,), replicas)
    chosen = affinity.choose((key,), replicas, session)
    bound = BOUND * sum(loads) / len(loads) + BOUND_REQUESTS
    within = {replica.uid for replica in replicas if replica.load <= bound * replica.share}
    assert chosen in within or not within
    if not within:
        assert chosen == min(replicas, key=lambda replica: (replica.load + 1) / replica.share).uid


def test_the_load_is_the_report_and_what_has_come_and_gone_since() -> None:
    assert find_load(2, 3, 0.5, 4) == 9.5
    assert find_load(2, 3, 0.5, 4, num_gateways=2) == 13.5
    assert find_load(0, 3, 0.5, -4) == 0.5
