import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millrace_operator.api.removed_fields import APPLIED
from millrace_operator.kube.answers import compact
from testing.world import make_service

LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=200)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
)


@given(VALUES)
def test_what_is_read_stays_as_it_was(spec: Any) -> None:
    obj = {"kind": "Deployment", "metadata": {"name": "x", "annotations": {"a": "b"}}, "spec": spec}
    before = copy.deepcopy(obj)
    assert compact(obj) == before == obj


def test_the_managers_and_kubectls_copy_go() -> None:
    obj = make_service()
    obj["metadata"] |= {"managedFields": [{}], "annotations": {APPLIED: "{}", "millrace.dev/pin": "2"}}
    before = copy.deepcopy(obj)
    found = compact(obj)["metadata"]
    assert "managedFields" not in found
    assert found["annotations"] == {"millrace.dev/pin": "2"}
    assert obj == before


def test_equal_texts_are_one() -> None:
    text = json.dumps(make_service(engine={"maxSequences": 3}))
    first, second = (compact(json.loads(text)) for _ in range(2))
    assert first["spec"]["model"]["uri"] is second["spec"]["model"]["uri"]
    assert next(iter(first["spec"])) is next(iter(second["spec"]))
