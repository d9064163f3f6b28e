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
        (
            applied({f"old{number}": 1 for number in range(9)}),
            [*(f"spec.old{n}" for n in range(MOST_NAMED)), "1 more"],
        ),
        (applied([1]), []),
        ({"annotations": {APPLIED: "no JSON"}, "managedFields": None}, []),
        ({"annotations": {APPLIED: "[1]"}}, []),
    ],
)
def test_fields_that_no_spec_has_are_named(metadata: dict[str, Any], removed: list[str]) -> None:
    assert find_removed(metadata) == removed


def record(time: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "manager": time,
        "operation": "Apply",
        "time": f"2026-11-{time}T00:00:00Z",
        "fieldsV1": {"f:spec": spec},
    }


OLD_COPY = {"annotations": {APPLIED: json.dumps({"spec": {"model": {"uri": "u", "follow": "Branch"}}})}}
COPIED = {"f:metadata": {"f:annotations": {".": {}, f"f:{APPLIED}": {}}}}
NOW = {"f:model": {"f:uri": {}}}


@pytest.mark.parametrize(
    ("annotations", "entries", "removed"),
    [
        # kubectl applied once; since then Argo CD applies by the server, without the field.
        (OLD_COPY, [record("29", NOW)], []),
        (OLD_COPY, [record("01", NOW)], []),  # nobody has said when the copy was written
        (OLD_COPY, [record("01", NOW), {"operation": "Update", "time": "2026-11-02", "fieldsV1": COPIED}],
         ["spec.model.follow"]),
        ({}, [record("01", OWNED), record("29", NOW)], []),
        ({}, [record("29", OWNED), record("01", NOW)], ["spec.model.follow", "spec.model.source"]),
        # Another writer's share of the spec replaces no manifest, and may have such fields itself.
        ({}, [record("01", OWNED), record("29", {"f:replicas": {}, "f:old": {}})],
         ["spec.model.follow", "spec.model.source", "spec.old"]),
    ],
)  # fmt: skip
def test_the_manifest_that_was_applied_last_counts(
    annotations: dict[str, Any], entries: list[dict[str, Any]], removed: list[str]
) -> None:
    assert find_removed({**annotations, "managedFields": entries}) == removed
