"""How many sequences a gateway has at each replica, and which numbers have changed since the last look."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from millrace_gateway.route.census import MOST_CHANGED, Census
from millrace_gateway.route.objects import ServiceKey

CHAT, OTHER = ServiceKey("a", "chat"), ServiceKey("a", "other")


def test_a_look_tells_all_and_the_next_ones_what_has_changed() -> None:
    census = Census()
    assert census.look_at_changed(CHAT) is None
    census.add(CHAT, "p0", 2)
    census.add(CHAT, "p1", 1)
    census.add(OTHER, "p9", 1)
    assert census.look_at_changed(CHAT) is None  # nobody has looked before
    assert census.look(CHAT) == {"p0": 2, "p1": 1}
    census.add(CHAT, "p0", 3)
    census.add(CHAT, "p1", -1)
    assert census.look_at_changed(CHAT) == {"p0": 5, "p1": 0}
    assert census.look_at_changed(CHAT) == {}
    census.add(CHAT, "p0", -5)
    assert census.look_at_changed(CHAT) is None  # nothing is kept of a service without requests
    assert census.look(CHAT) == {}


def test_many_changes_are_not_kept() -> None:
    census = Census()
    census.add(CHAT, "p", 1)
    census.look(CHAT)
    for number in range(MOST_CHANGED + 1):
        census.add(CHAT, f"p{number}", 1)
    assert census.look_at_changed(CHAT) is None


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("ae"), st.integers(0, 3))))
def test_what_has_changed_leads_from_one_look_to_the_next(moves: list[tuple[str, str, int]]) -> None:
    census, truth, known = Census(), Counter[str](), dict[str, int]()
    for uid, action, num in moves:
        change = num if action == "a" else -min(num, truth[uid])
        census.add(CHAT, uid, change)
        truth[uid] += change
        if num == 3:
            changed = census.look_at_changed(CHAT)
            known = census.look(CHAT) if changed is None else known | changed
            assert +Counter(known) == +truth
