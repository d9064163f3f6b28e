from typing import Any

from millrace_operator.api.conditions import render_time
from millrace_operator.observed.pods import DELETION_COST, Pod, read_pod
from millrace_operator.observed.snapshot import PodLoad
from millrace_operator.scaling.drain import DONE_COST, LEAVING_COST, SILENT_SECONDS, Traffic, plan_shrink
from millrace_runtime.contract import ANNOTATION_LEAVING
from testing.world import make_pod, ready_status

NOW = 1_800_000_000.0
GRACE = 600.0


def pod(
    name: str,
    *,
    ready: bool = True,
    cost: str | None = None,
    since: float | None = None,
    created: str = "2026-01-01T00:00:00Z",
) -> Pod:
    status: dict[str, Any] = ready_status() if ready else {}
    raw = make_pod(name, "r", **status)
    raw["metadata"]["creationTimestamp"] = created
    raw["metadata"]["annotations"] = {} if cost is None else {DELETION_COST: cost}
    if since is not None:
        raw["metadata"]["annotations"][ANNOTATION_LEAVING] = render_time(NOW - since)
    return read_pod(raw)


def leaver(name: str, cost: str = LEAVING_COST, since: float = 1.0) -> Pod:
    return pod(name, cost=cost, since=since)


def traffic(patience: float = GRACE, **in_flight: int) -> Traffic:
    """Every gateway knows of the marks, and has so many requests in flight."""
    loads = {f"uid-{name}": PodLoad(count, has_left=True) for name, count in in_flight.items()}
    return Traffic(NOW, patience, loads=loads)


NOTHING = Traffic(NOW, GRACE)


def test_growing_needs_no_marks() -> None:
    assert plan_shrink(3, 2, [pod("a"), pod("b")], NOTHING).count == 3


def test_the_idlest_is_marked_first_and_the_count_waits() -> None:
    known = Traffic(NOW, GRACE, {"a": 3, "b": 0, "c": 1})
    shrink = plan_shrink(1, 3, [pod("a"), pod("b"), pod("c")], known)
    assert shrink.count == 3
    assert [mark.pod for mark in shrink.marks] == ["b", "c"]
    assert all(mark.cost == LEAVING_COST for mark in shrink.marks)
    assert all(mark.annotations[ANNOTATION_LEAVING] == render_time(NOW) for mark in shrink.marks)


def test_what_gateways_tell_now_goes_before_what_was_scraped() -> None:
    loads = {"uid-a": PodLoad(0, has_left=False), "uid-b": PodLoad(4, has_left=False)}
    known = Traffic(NOW, GRACE, {"a": 3, "b": 0}, loads)
    assert [mark.pod for mark in plan_shrink(1, 2, [pod("a"), pod("b")], known).marks] == ["a"]


def test_where_a_gateway_tells_nothing_what_was_scraped_counts_beside_what_the_others_have() -> None:
    loads = {
        "uid-a": PodLoad(1, has_left=False, silent_since=NOW - 5),
        "uid-b": PodLoad(0, has_left=False, silent_since=NOW - 5),
    }
    known = Traffic(NOW, GRACE, {"a": 1, "b": 50}, loads)
    (mark,) = plan_shrink(1, 2, [pod("a"), pod("b")], known).marks
    assert (mark.pod, mark.why) == ("a", "it leaves first (1 requests in flight)")


def test_the_youngest_of_equally_idle_ones_goes() -> None:
    pods = [pod("old"), pod("young", created="2026-02-01T00:00:00Z")]
    assert [mark.pod for mark in plan_shrink(1, 2, pods, NOTHING).marks] == ["young"]


def test_the_count_waits_for_the_last_request_of_a_marked_pod() -> None:
    pods = [pod("a"), leaver("b")]
    waiting = plan_shrink(1, 2, pods, traffic(a=5, b=1))
    assert (waiting.count, waiting.marks, waiting.is_waiting) == (2, (), True)
    gone = plan_shrink(1, 2, pods, traffic(a=5, b=0))
    assert (gone.count, gone.is_waiting) == (1, False)


def test_no_request_is_no_proof_before_every_gateway_has_seen_the_mark() -> None:
    loads = {"uid-b": PodLoad(0, has_left=False)}
    assert plan_shrink(1, 2, [pod("a"), leaver("b")], Traffic(NOW, GRACE, loads=loads)).count == 2


def test_a_request_is_waited_for_no_longer_than_the_grace() -> None:
    assert plan_shrink(1, 2, [pod("a"), leaver("b", since=GRACE - 1)], traffic(a=0, b=1)).count == 2
    assert plan_shrink(1, 2, [pod("a"), leaver("b", since=GRACE)], traffic(a=0, b=1)).count == 1


def test_gateways_that_tell_nothing_are_waited_for_briefly() -> None:
    assert plan_shrink(1, 2, [pod("a"), leaver("b", since=SILENT_SECONDS - 1)], NOTHING).count == 2
    assert plan_shrink(1, 2, [pod("a"), leaver("b", since=SILENT_SECONDS)], NOTHING).count == 1


def test_without_patience_seen_marks_let_the_count_fall() -> None:
    assert plan_shrink(1, 2, [pod("a"), leaver("b")], traffic(patience=0.0, a=1, b=1)).count == 1


def test_a_mark_of_an_older_operator_lets_the_count_fall() -> None:
    assert plan_shrink(1, 2, [pod("a"), pod("b", cost=LEAVING_COST)], traffic(a=1, b=1)).count == 1


def test_of_several_marked_pods_those_that_are_done_go_before_the_others() -> None:
    pods = [pod("a"), leaver("b"), leaver("c")]
    first = plan_shrink(1, 3, pods, traffic(a=1, b=2, c=0))
    assert (first.count, first.is_waiting) == (3, True)
    assert [(mark.pod, mark.cost) for mark in first.marks] == [("c", DONE_COST)]
    pods = [pod("a"), leaver("b"), leaver("c", DONE_COST)]
    assert plan_shrink(1, 3, pods, traffic(a=1, b=2, c=0)).count == 2
    after = plan_shrink(1, 2, pods, traffic(a=1, b=2, c=0))
    assert (after.count, after.marks) == (2, ())  # as long as the ReplicaSet has not taken c
    assert plan_shrink(1, 2, pods[:2], traffic(a=1, b=0)).count == 1


def test_a_load_that_comes_back_takes_back_the_busiest_mark() -> None:
    pods = [pod("a"), leaver("b"), leaver("c"), leaver("d", DONE_COST)]
    shrink = plan_shrink(2, 4, pods, traffic(a=1, b=2, c=1, d=0))
    assert shrink.count == 4
    assert [(mark.pod, mark.cost) for mark in shrink.marks] == [("b", None)]
    assert shrink.marks[0].annotations == {DELETION_COST: None, ANNOTATION_LEAVING: None}


def test_pods_that_are_not_ready_go_without_marks() -> None:
    shrink = plan_shrink(1, 2, [pod("a"), pod("b", ready=False)], NOTHING)
    assert shrink == plan_shrink(1, 1, [pod("a")], NOTHING)


def test_a_pod_that_is_not_ready_does_not_wait_for_one_that_is_busy() -> None:
    pods = [pod("a"), leaver("b"), pod("c", ready=False)]
    assert plan_shrink(1, 3, pods, traffic(a=1, b=1)).count == 2


def test_all_of_them_need_no_choice() -> None:
    assert plan_shrink(0, 2, [pod("a"), pod("b")], NOTHING).count == 0


def test_a_scale_down_called_off_takes_its_marks_back() -> None:
    marks = plan_shrink(2, 2, [pod("a"), leaver("b")], NOTHING).marks
    assert [(mark.pod, mark.cost) for mark in marks] == [("b", None)]


def test_marks_stay_while_the_marked_pods_are_going() -> None:
    assert plan_shrink(1, 1, [pod("a"), leaver("b")], NOTHING).marks == ()
