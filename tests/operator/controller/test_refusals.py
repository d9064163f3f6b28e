"""How long a refusal counts."""

from millrace_operator.controller.refusals import MARK_SECONDS, Refusals
from millrace_operator.kube.kinds import ObjectId, ServiceKey

KEY = ServiceKey("shop", "chat")
CHILD, MARK = ObjectId("Deployment", "chat-1"), ObjectId("Pod", "chat-1-a")
NOW = 1_800_000_000.0


def refused() -> Refusals:
    refusals = Refusals()
    refusals.note(KEY, CHILD, "a quota", NOW)
    refusals.note(KEY, MARK, "a policy", NOW)
    return refusals


def test_a_childs_counts_until_it_is_written_or_is_no_longer_to_be() -> None:
    refusals = refused()
    refusals.keep(KEY, {CHILD}, NOW)
    assert refusals.recall(KEY, NOW + 1e6) == {CHILD: "a quota"}
    refusals.forget(KEY, CHILD)
    assert CHILD not in refusals.recall(KEY, NOW)
    refusals = refused()
    refusals.keep(KEY, (), NOW)
    assert refusals.recall(KEY, NOW) == {MARK: "a policy"}


def test_a_marks_counts_for_a_while_in_which_none_is_tried() -> None:
    refusals = refused()
    refusals.keep(KEY, (), NOW)
    assert refusals.seconds_to_next(KEY, NOW + 10.0) == MARK_SECONDS - 10.0
    assert refusals.recall(KEY, NOW + MARK_SECONDS) == {}
    assert refusals.seconds_to_next(KEY, NOW + MARK_SECONDS) is None


def test_those_of_a_service_that_is_gone_are_forgotten() -> None:
    refusals = refused()
    refusals.forget(KEY)
    assert refusals.recall(KEY, NOW) == {}
