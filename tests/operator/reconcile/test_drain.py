from typing import Any

from millrace_operator.reconcile.drain import LOWEST_COST, plan_shrink
from millrace_operator.reconcile.pods import DELETION_COST, Pod, read_pod
from tests.operator.world import make_pod, ready_status


def pod(name: str, *, ready: bool = True, marked: bool = False, created: str = "2026-01-01T00:00:00Z") -> Pod:
    status: dict[str, Any] = ready_status() if ready else {}
    raw = make_pod(name, "r", **status)
    raw["metadata"]["creationTimestamp"] = created
    raw["metadata"]["annotations"] = {DELETION_COST: LOWEST_COST} if marked else {}
    return read_pod(raw)


def test_growing_needs_no_marks() -> None:
    assert plan_shrink(3, 2, [pod("a"), pod("b")], {}).count == 3


def test_the_idlest_is_marked_first_and_the_count_waits() -> None:
    shrink = plan_shrink(1, 3, [pod("a"), pod("b"), pod("c")], {"a": 3, "b": 0, "c": 1})
    assert shrink.count == 3
    assert [mark.pod for mark in shrink.marks] == ["b", "c"]
    assert all(mark.cost == "-100" for mark in shrink.marks)


def test_the_youngest_of_equally_idle_ones_goes() -> None:
    pods = [pod("old"), pod("young", created="2026-02-01T00:00:00Z")]
    assert [mark.pod for mark in plan_shrink(1, 2, pods, {}).marks] == ["young"]


def test_seen_marks_let_the_count_fall() -> None:
    assert plan_shrink(1, 2, [pod("a"), pod("b", marked=True)], {}).count == 1


def test_pods_that_are_not_ready_go_without_marks() -> None:
    assert plan_shrink(1, 2, [pod("a"), pod("b", ready=False)], {}) == plan_shrink(1, 1, [pod("a")], {})


def test_all_of_them_need_no_choice() -> None:
    assert plan_shrink(0, 2, [pod("a"), pod("b")], {}).count == 0


def test_a_scale_down_called_off_takes_its_marks_back() -> None:
    marks = plan_shrink(2, 2, [pod("a"), pod("b", marked=True)], {}).marks
    assert [(mark.pod, mark.cost) for mark in marks] == [("b", None)]


def test_marks_stay_while_the_marked_pods_are_going() -> None:
    assert plan_shrink(1, 1, [pod("a"), pod("b", marked=True)], {}).marks == ()
