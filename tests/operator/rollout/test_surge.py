from hypothesis import given
from hypothesis import strategies as st

from millrace_operator.rollout.surge import Method, RevisionState, plan_rollout


def state(name: str, num_ready: int, num_wanted: int | None = None, **facts: bool | int) -> RevisionState:
    wanted = num_ready if num_wanted is None else num_wanted
    return RevisionState(name, wanted, wanted, num_ready, num_ready, **facts)  # type: ignore[arg-type]


def test_the_only_revision_has_all_replicas() -> None:
    step = plan_rollout(3, state("new", 0), [], Method.SURGE)
    assert (step.counts, step.is_done) == ({"new": 3}, False)
    assert plan_rollout(3, state("new", 3), [], Method.SURGE).is_done


def test_a_whole_rollout_with_room_to_surge() -> None:
    new, old, history = 0, 3, []
    for _ in range(10):
        step = plan_rollout(3, state("new", new), [state("old", old)] if old else [], Method.SURGE)
        history.append((step.counts.get("old", 0), step.counts["new"]))
        new, old = step.counts["new"], step.counts.get("old", 0)
        if step.is_done:
            break
    assert history == [(3, 1), (2, 2), (1, 3), (0, 3), (0, 3)]


def test_a_failing_revision_gets_one_replica_and_the_old_ones_carry_the_load() -> None:
    failing = state("new", 0, 1, is_failing=True)
    assert plan_rollout(4, failing, [state("old", 2)], Method.SURGE).counts == {"old": 4, "new": 1}


def test_an_unschedulable_surge_makes_room_from_two_replicas_on() -> None:
    blocked = state("new", 0, 1, lacks_room=True)
    step = plan_rollout(2, blocked, [state("old", 2)], Method.SURGE)
    assert (step.counts, step.method) == ({"old": 1, "new": 1}, Method.REPLACE)
    alone = plan_rollout(1, blocked, [state("old", 1)], Method.SURGE)
    assert (alone.counts, alone.method) == ({"old": 1, "new": 1}, Method.SURGE)


def test_room_that_is_being_made_is_waited_for() -> None:
    blocked = state("new", 0, 1, lacks_room=True)
    draining = RevisionState("old", 2, 2, 2, 2, num_terminating=1)
    assert plan_rollout(2, blocked, [draining], Method.SURGE).method is Method.SURGE


def test_replacing_stays_until_the_end_or_it_would_flip_back() -> None:
    step = plan_rollout(2, state("new", 1, 1), [state("old", 1)], Method.REPLACE)
    assert (step.counts, step.method) == ({"old": 0, "new": 2}, Method.REPLACE)


def test_a_revert_mid_rollout_needs_nothing_new() -> None:
    step = plan_rollout(2, state("stable", 2), [state("bad", 0, 1)], Method.SURGE)
    assert step.counts == {"bad": 0, "stable": 2}


def test_the_stable_revision_is_kept_before_others() -> None:
    step = plan_rollout(2, state("c", 0, 1), [state("a", 1), state("b", 2)], Method.SURGE)
    assert step.counts == {"a": 1, "b": 1, "c": 1}


def test_scaling_to_zero_mid_rollout_ends_it() -> None:
    assert plan_rollout(0, state("new", 0, 1), [state("old", 2)], Method.SURGE).counts == {"old": 0, "new": 0}


@given(
    desired=st.integers(1, 6),
    num_new=st.integers(0, 6),
    old=st.lists(st.integers(0, 6), max_size=3),
    fails=st.booleans(),
    is_blocked=st.booleans(),
)
def test_ready_replicas_never_fall_below_what_is_desired(
    *, desired: int, num_new: int, old: list[int], fails: bool, is_blocked: bool
) -> None:
    target = state("new", num_new, num_new + 1, is_failing=fails, lacks_room=is_blocked)
    others = [state(f"old{index}", count) for index, count in enumerate(old)]
    step = plan_rollout(desired, target, others, Method.SURGE)
    before = num_new + sum(old)
    kept = min(num_new, step.counts["new"]) + sum(
        min(n, step.counts.get(f"old{i}", 0)) for i, n in enumerate(old)
    )
    slack = 1 if step.method is Method.REPLACE else 0
    assert kept >= min(before, desired) - slack
    assert sum(step.counts.values()) <= max(desired + 1, desired)
    assert min(step.counts.values()) >= 0
