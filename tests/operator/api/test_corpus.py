"""Every manifest that was valid stays valid. `e2e/test_resource.py` asks a real API server, and its rules."""

from collections.abc import Iterator
from typing import Any

import pytest

from millrace_operator.api import crd
from millrace_operator.api.types import Spec
from millrace_operator.kube.kinds import Obj
from testing.manifests import read_corpus

CORPUS = read_corpus()
ROOT = crd.render_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def find_faults(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    """Yield fields that the schema would prune or misses, and words that are none of an enum."""
    if value not in schema.get("enum", [value]):
        yield f"{path}: {value!r}"
    if isinstance(value, list):
        for item in value:
            yield from find_faults(item, schema["items"], f"{path}[]")
    elif isinstance(value, dict):
        yield from (f"{path}.{name}: missing" for name in schema.get("required", []) if name not in value)
        for name, field in value.items():
            known = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
            if known is None:
                yield f"{path}.{name}: unknown"
            else:
                yield from find_faults(field, known, f"{path}.{name}")


@pytest.mark.parametrize("name", CORPUS)
def test_a_manifest_that_was_valid_stays_valid(name: str) -> None:
    manifest = CORPUS[name]
    assert manifest["apiVersion"] == "millrace.dev/v1alpha1"
    assert list(find_faults(manifest["spec"], ROOT["properties"]["spec"], "spec")) == []
    Spec.model_validate(manifest["spec"])


def test_the_corpus_has_all_its_sources() -> None:
    sources = {name.partition(" ")[0] for name in CORPUS}
    assert {"README.md", "examples/stories.yaml", "docs/how-to/own-model.md"} <= sources
    assert {f"testing/manifests/{name}.yaml" for name in ("older", "fields")} <= sources


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ({"model": {}}, "spec.model.uri: missing"),
        ({"model": {"uri": "file:///m"}, "replica": 1}, "spec.replica: unknown"),
        ({"model": {"uri": "file:///m"}, "scaling": {"mode": "Auto"}}, "spec.scaling.mode: 'Auto'"),
    ],
)
def test_what_was_never_valid_is_noticed(spec: Obj, fault: str) -> None:
    assert list(find_faults(spec, ROOT["properties"]["spec"], "spec")) == [fault]
