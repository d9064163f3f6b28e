"""The models that go, the models that stay, and the Node's labels."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_node_cache.models import DiskSpace, Look, Model, ModelKey, Uses, read_uses
from millrace_node_cache.plan import (
    MOST_OF_NAMESPACE,
    AmountLimit,
    ShareLimit,
    parse_limit,
    plan_eviction,
    plan_labels,
)
from millrace_runtime.contract import ANNOTATION_KEPT_BYTES, LABEL_KEPT, name_kept

A, B, C = (ModelKey("shop", name) for name in "abc")


def model(key: ModelKey, num_bytes: int = 10, used_at: float = 0, *, is_whole: bool = True) -> Model:
    return Model(key, num_bytes, num_bytes if is_whole else None, used_at)


def look(*models: Model, used: int = 0, uses: Mapping[str, Uses | None] | None = None) -> Look:
    return Look(DiskSpace(100, used), models, {"shop": {}} if uses is None else uses)


def test_a_model_is_named_as_its_pods_name_it() -> None:
    assert A.name == name_kept("shop", "millrace/a")


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("80%", ShareLimit(80)),
        ("100%", ShareLimit(100)),
        ("500Gi", AmountLimit(500 << 30)),
        ("2T", AmountLimit(2 * 10**12)),
        ("1000k", AmountLimit(10**6)),
    ],
)
def test_a_limit_is_a_share_or_an_amount(text: str, limit: object) -> None:
    assert parse_limit(text) == limit


@pytest.mark.parametrize("text", ["", "0%", "101%", "80", "0Gi", "-1Gi", "1.5Ti", "80 %", "500GB", "٣Gi"])
def test_another_limit_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="write a share of the disk from 1% to 100%, or an amount as 500Gi"):
        parse_limit(text)


def test_a_share_is_of_the_disk_whoever_uses_it() -> None:
    assert plan_eviction(look(model(A), used=80), ShareLimit(80)).candidates == ()
    plan = plan_eviction(look(model(A), used=95), ShareLimit(80))
    assert (plan.num_bytes, [each.key for each in plan.candidates]) == (15, [A])


def test_an_amount_is_of_the_models_alone() -> None:
    assert plan_eviction(look(model(A), model(B), used=100), AmountLimit(20)).candidates == ()
    assert plan_eviction(look(model(A), model(B)), AmountLimit(19)).num_bytes == 1


def test_the_least_recently_used_goes_first() -> None:
    models = (model(A, used_at=3), model(B, used_at=1), model(C, used_at=2, is_whole=False))
    plan = plan_eviction(look(*models), AmountLimit(1))
    assert [each.key for each in plan.candidates] == [B, C, A]


def test_what_a_pod_reads_is_no_candidate_and_neither_is_what_nobody_knows() -> None:
    other = model(ModelKey("search", "a"))
    unknown = model(ModelKey("dark", "a"))
    unlisted = model(ModelKey("unlisted", "a"))
    seen = look(
        model(A), model(B), other, unknown, unlisted, uses={"shop": {A.name: 0}, "search": {}, "dark": None}
    )
    candidates = plan_eviction(seen, AmountLimit(1)).candidates
    assert {each.key for each in candidates} == {B, other.key}


def test_a_namespace_can_keep_no_model_of_another() -> None:
    seen = look(model(A), uses={"shop": {}, "search": {A.name: 50}})
    plan = plan_eviction(seen, AmountLimit(10))
    assert (plan.num_bytes, [each.key for each in plan.candidates]) == (50, [A])


def test_room_is_made_for_what_is_about_to_come() -> None:
    half = model(B, 4, is_whole=False)
    seen = look(model(A), half, model(C), uses={"shop": {B.name: 10, C.name: 30, "absent": 7}})
    assert seen.coming_bytes == 6 + 0 + 7
    plan = plan_eviction(seen, AmountLimit(24))
    assert (plan.num_bytes, [each.key for each in plan.candidates]) == (13, [A])


@given(
    st.lists(st.tuples(st.integers(1, 50), st.floats(0, 9), st.booleans()), max_size=8), st.integers(1, 200)
)
def test_enough_goes_or_nothing_is_left_that_may(parts: list[tuple[int, float, bool]], allowed: int) -> None:
    models = [model(ModelKey("shop", str(index)), size, at) for index, (size, at, _) in enumerate(parts)]
    used = {one.key.name: 0 for one, (_, _, is_used) in zip(models, parts, strict=True) if is_used}
    plan = plan_eviction(look(*models, uses={"shop": used}), AmountLimit(allowed))
    freed = sum(each.num_bytes for each in plan.candidates)
    kept = sum(each.num_bytes for each in models) - freed
    assert (
        plan.num_bytes == 0
        or kept <= allowed
        or all(each.key.name in used for each in models if each not in plan.candidates)
    )
    assert not {each.key.name for each in plan.candidates} & used.keys()


def test_labels_are_of_whole_models_and_others_labels_are_left() -> None:
    present = {
        "kubernetes.io/os": "linux",
        "models.millrace.dev/gone": "1",
        f"models.millrace.dev/{A.name}": "9",
    }
    models = [model(A), model(B), model(C, is_whole=False)]
    change = plan_labels(present, models)
    assert change == {
        f"models.millrace.dev/{A.name}": "10",
        f"models.millrace.dev/{B.name}": "10",
        "models.millrace.dev/gone": None,
    }
    after = {name: value for name, value in {**present, **change}.items() if value is not None}
    assert plan_labels(after, models) == {}


def test_a_namespace_full_of_folders_leaves_room_for_the_others() -> None:
    many = [model(ModelKey("greedy", str(number)), used_at=number) for number in range(200)]
    change = plan_labels({}, [*many, model(A)])
    assert len(change) == MOST_OF_NAMESPACE + 1
    assert f"models.millrace.dev/{many[-1].key.name}" in change


def pod(phase: str, name: str | None, size: str | None = None) -> dict[str, Any]:
    labels = None if name is None else {LABEL_KEPT: name}
    annotations = None if size is None else {ANNOTATION_KEPT_BYTES: size}
    return {"metadata": {"labels": labels, "annotations": annotations}, "status": {"phase": phase}}


def test_a_pod_that_is_over_reads_nothing() -> None:
    pods = [
        pod("Running", "a", "100"),
        pod("Pending", "a"),
        pod("Pending", "b", "x"),
        pod("Failed", "c"),
        pod("Succeeded", "d"),
        pod("Running", None),
        pod("Unknown", "e", "9" * 30),
    ]
    assert read_uses(pods) == {"a": 100, "b": 0, "e": 0}
