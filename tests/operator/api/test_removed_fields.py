"""Fields of a manifest that this version's spec lacks, from what a real API server keeps of them."""

import json
from typing import Any

import pytest

from millrace_operator.api.removed_fields import APPLIED, MOST_NAMED, find_removed

OWNED = {"f:model": {"f:follow": {}, "f:source": {"f:every": {}}, "f:uri": {}}}
ENV_KEY = 'k:{"name":"A"}'


def managed(spec: dict[str, Any], operation: str = "Apply") -> dict[str, Any]:
    entry = {"manager": "x", "operation": operation, "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": spec}}
    return {"managedFields": [{"manager": "millrace-operator", "operation": "Apply"}, entry]}


def applied(spec: Any) -> dict[str, Any]:
    return {"annotations": {APPLIED: json.dumps({"kind": "InferenceService", "spec": spec})}}


@pytest.mark.parametrize(
    ("metadata", "removed"),
    [
        ({}, []),
        (managed(OWNED), ["spec.model.follow", "spec.model.source"]),
        # A client-side apply without the field leaves its manager's entry as it was; nobody can end that.
        (managed(OWNED, "Update"), []),
        (applied({"model": {"uri": "u", "follow": "Branch"}}), ["spec.model.follow"]),
        (managed({"f:pod": {"f:env": {ENV_KEY: {".": {}, "f:name": {}, "f:x": {}}}}}), ["spec.pod.env.x"]),
        (applied({"pod": {"env": [{"name": "A", "x": 1}, {"name": "B", "x": 2}]}}), ["spec.pod.env.x"]),
        (managed({"f:pod": {"f:nodeSelector": {"f:gpu": {}}}, "f:replicas": {}}), []),
        (applied({"pod": {"nodeSelector": {"gpu": "a"}}, "scaling": None, "model": {}}), []),
        (applied({"resources": {"limits": {"cpu": "1", "nvidia.com/gpu": 2}}}), []),
        (applied({"old": 1}) | managed({"f:old": {}, "f:older": {}}), ["spec.old", "spec.older"]),
        (applied({f"old{number}": 1 for number in range(9)}), [f"spec.old{n}" for n in range(MOST_NAMED)]),
        (applied([1]), []),
        ({"annotations": {APPLIED: "no JSON"}, "managedFields": None}, []),
        ({"annotations": {APPLIED: "[1]"}}, []),
    ],
)
def test_fields_that_no_spec_has_are_named(metadata: dict[str, Any], removed: list[str]) -> None:
    assert find_removed(metadata) == removed
