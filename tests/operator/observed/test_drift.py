import hashlib
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace_operator.render.child import APPLIED, has_drifted, seal

DESIRED = {
    "spec": {"replicas": 2, "template": {"containers": [{"name": "replica", "args": ["serve"], "env": []}]}}
}


def test_what_others_added_is_left_alone() -> None:
    containers = [{"name": "sidecar"}, {"name": "replica", "args": ["serve"], "image": "x"}]
    observed = {"spec": {"replicas": 2, "template": {"containers": containers}, "paused": False}}
    assert not has_drifted(DESIRED, observed)


@pytest.mark.parametrize(
    "observed",
    [
        {"spec": {"replicas": 1, "template": {"containers": [{"name": "replica", "args": ["serve"]}]}}},
        {
            "spec": {
                "replicas": 2,
                "template": {"containers": [{"name": "replica", "args": ["serve", "--x"]}]},
            }
        },
        {"spec": {"replicas": 2, "template": {"containers": []}}},
        {"spec": {"replicas": 2}},
        {},
    ],
)
def test_what_is_ours_and_different_is_drift(observed: Any) -> None:
    assert has_drifted(DESIRED, observed)


@pytest.mark.parametrize(("ours", "theirs"), [("1000m", "1"), ("1024Mi", "1Gi"), ("0.5", "500m"), ("2", 2)])
def test_one_amount_in_two_spellings_is_no_drift(ours: Any, theirs: Any) -> None:
    assert not has_drifted({"limits": {"cpu": ours}}, {"limits": {"cpu": theirs}})


def test_different_amounts_are() -> None:
    assert has_drifted({"limits": {"cpu": "1"}}, {"limits": {"cpu": "2"}})
    assert has_drifted({"image": "a"}, {"image": "b"})


def test_the_seal_shows_a_field_that_is_no_longer_wanted() -> None:
    old = seal({"metadata": {"name": "x"}, "spec": {"a": 1, "b": 2}})
    new = seal({"metadata": {"name": "x"}, "spec": {"a": 1}})
    assert not has_drifted(old, old)
    assert has_drifted(new, old)
    assert APPLIED in new["metadata"]["annotations"]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
@example("\x7f")
@example({"epsilon": 1e-05})
@example([-2.5e-05])
@example({"theta": 10**20, "all": [-1e-06, 1e20]})
def test_a_seal_is_the_same_in_each_version_so_that_an_upgrade_writes_no_object_anew(value: Any) -> None:
    obj = {"metadata": {"name": "x"}, "spec": value}
    text = json.dumps(obj, sort_keys=True, separators=(",", ":"))
    expected = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert seal(obj)["metadata"]["annotations"][APPLIED] == expected


@pytest.mark.parametrize("power", range(-12, 25))
def test_a_seal_is_the_same_for_numbers_of_any_size(power: int) -> None:
    for digits in ("1", "-2.5", "9.999", "1.2345678901234567"):
        content = {"spec": [float(f"{digits}e{power}")], "metadata": {}}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        expected = hashlib.sha256(text.encode()).hexdigest()[:16]
        assert seal(content)["metadata"]["annotations"][APPLIED] == expected, digits
