"""How many sequences a gateway has at each replica, and which numbers have changed since the last look."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from millrace_gateway.route.objects import ServiceKey
from millrace_gateway.route.sequence_counts import MOST_CHANGED, SequenceCounts

CHAT, OTHER = ServiceKey("a", "chat"), ServiceKey("a", "other")


def test_a_look_tells_all_and_the_next_ones_what_has_changed() -> None:
    counts = SequenceCounts()
    assert counts.look_at_changed(CHAT) is None
    counts.add(CHAT, "p0", 2)
    counts.add(CHAT, "p1", 1)
    counts.add(OTHER, "p9", 1)
    assert counts.look_at_changed(CHAT) is None  # nobody has looked before
    assert counts.look(CHAT) == {"p0": 2, "p1": 1}
    counts.add(CHAT, "p0", 3)
    counts.add(CHAT, "p1", -1)
    assert counts.look_at_changed(CHAT) == {"p0": 5, "p1": 0}
    assert counts.look_at_changed(CHAT) == {}
    counts.add(CHAT, "p0", -5)
    assert counts.look_at_changed(CHAT) is None  # nothing is kept of a service without requests
    assert counts.look(CHAT) == {}


def test_many_changes_are_not_kept() -> None:
    counts = SequenceCounts()
    counts.add(CHAT, "p", 1)
    counts.look(CHAT)
    for number in range(MOST_CHANGED + 1):
        counts.add(CHAT, f"p{number}", 1)
    assert counts.look_at_changed(CHAT) is None


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("ae"), st.integers(0, 3))))
def test_what_has_changed_leads_from_one_look_to_the_next(moves: list[tuple[str, str, int]]) -> None:
    counts, truth, known = SequenceCounts(), Counter[str](), dict[str, int]()
    for uid, action, num in moves:
        change = num if action == "a" else -min(num, truth[uid])
        counts.add(CHAT, uid, change)
        truth[uid] += change
        if num == 3:
            changed = counts.look_at_changed(CHAT)
            known = counts.look(CHAT) if changed is None else known | changed
            assert +Counter(known) == +truth
