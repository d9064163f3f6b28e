"""The gateways' private keys over a year: made once, replaced by overlap, and gone when no pod needs them."""

from collections.abc import Set as AbstractSet

from hypothesis import given
from hypothesis import strategies as st

from millrace_operator.api.conditions import parse_time
from millrace_operator.gateways.signing_keys import KeyPlan, find_newest, name_key, plan_keys

HOUR, DAY = 3600.0, 24 * 3600.0
NEW_YEAR = parse_time("2026-01-01T00:00:00Z") or 0.0
FIRST, SECOND = "k-20260101T000000Z", "k-20260401T000000Z"


class Store:
    """A Secret that follows its plans. A key's public part is its name in capitals."""

    def __init__(self) -> None:
        self.entries: dict[str, str | None] = {}

    def follow(self, now: float, in_use: AbstractSet[str] | None = frozenset()) -> KeyPlan:
        due = plan_keys(now, self.entries, in_use)
        for name in due.removed:
            del self.entries[name]
        if due.added:
            self.entries[due.added] = due.added.upper()
        return due


def test_a_key_is_made_replaced_by_overlap_and_removed() -> None:
    store, nothing = Store(), KeyPlan()
    assert store.follow(NEW_YEAR) == KeyPlan(added=FIRST)
    assert store.follow(NEW_YEAR + 90 * DAY - 1) == nothing
    assert store.follow(NEW_YEAR + 90 * DAY, {FIRST.upper()}) == KeyPlan(added=SECOND)
    assert find_newest(store.entries) == SECOND
    later = NEW_YEAR + 90 * DAY + HOUR
    assert store.follow(later - 1, set()) == nothing, "a revision may just be made with the first"
    assert store.follow(later, {FIRST.upper(), SECOND.upper()}) == nothing
    assert store.follow(later, None) == nothing, "who does not know all pods removes nothing"
    assert store.follow(later, {SECOND.upper()}) == KeyPlan(removed=(FIRST,))
    assert set(store.entries) == {SECOND}


def test_an_entry_of_an_administrator_counts_and_what_is_no_key_stays() -> None:
    store, now = Store(), NEW_YEAR + 10 * DAY
    others: dict[str, str | None] = {"note": None, "other": "C", "k-20269999T000000Z": "D"}
    store.entries = {FIRST: "A", name_key(now - DAY): "B", **others}
    assert find_newest(store.entries) == name_key(now - DAY)
    assert store.follow(now) == KeyPlan(removed=(FIRST,))
    assert set(others) <= set(store.entries)
    broken: dict[str, str | None] = {FIRST: None}
    assert plan_keys(NEW_YEAR, broken, set()) == KeyPlan(), "its second is over soon"
    assert plan_keys(NEW_YEAR + 1, broken, set()).added == name_key(NEW_YEAR + 1)


@given(
    st.lists(st.tuples(st.floats(0, 40 * DAY), st.booleans()), max_size=30),
    st.floats(-400 * DAY, 400 * DAY),
)
def test_whatever_the_clock_does_there_is_a_key_and_none_in_use_goes(
    steps: list[tuple[float, bool]], start: float
) -> None:
    store, now, in_use = Store(), NEW_YEAR + start, set[str]()
    for index, (seconds, is_back) in enumerate(steps):
        now += -seconds if is_back else seconds
        store.follow(now, in_use)
        newest = find_newest(store.entries)
        assert newest is not None
        assert in_use <= set(store.entries.values())
        if index % 3 == 0:
            in_use = {*sorted(in_use)[-2:], newest.upper()}
