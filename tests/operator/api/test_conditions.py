from millrace_operator.api.conditions import (
    MESSAGE_MAX_LENGTH,
    Reason,
    Truth,
    find_condition,
    merge_conditions,
    parse_time,
    render_time,
)

READY = Truth("Ready", True, Reason.SERVING, "1 replica answers")


def test_the_transition_time_moves_only_with_the_status() -> None:
    first = merge_conditions([], [READY], 1, now=100)
    again = merge_conditions(first, [Truth("Ready", True, Reason.SERVING, "2 replicas answer")], 2, now=200)
    assert again[0]["lastTransitionTime"] == first[0]["lastTransitionTime"]
    assert (again[0]["message"], again[0]["observedGeneration"]) == ("2 replicas answer", 2)
    gone = merge_conditions(again, [Truth("Ready", False, Reason.CRASHING, "gone")], 2, now=300)
    assert gone[0]["lastTransitionTime"] == render_time(300)


def test_an_unknown_truth_is_unknown() -> None:
    assert (
        merge_conditions([], [Truth("ModelReady", None, Reason.STARTING, "")], 1, 0)[0]["status"] == "Unknown"
    )


def test_a_long_message_is_cut_to_what_the_schema_allows() -> None:
    truth = Truth("Degraded", True, Reason.CRASHING, "x" * 10_000)
    assert len(merge_conditions([], [truth], 1, 0)[0]["message"]) == MESSAGE_MAX_LENGTH


def test_conditions_that_are_no_longer_true_or_false_go() -> None:
    old = merge_conditions([], [READY], 1, 0)
    assert merge_conditions(old, [], 1, 0) == []


def test_times_go_there_and_back() -> None:
    assert parse_time(render_time(1_700_000_000)) == 1_700_000_000
    assert parse_time(None) is None


def test_finding_a_condition() -> None:
    status = {"conditions": merge_conditions([], [READY], 1, 0)}
    assert find_condition(status, "Ready")["reason"] == "Serving"
    assert find_condition(status, "Degraded") is None
