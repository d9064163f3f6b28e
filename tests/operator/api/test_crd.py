from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from millrace_operator.api import crd, rules
from millrace_operator.api.scaling_types import Objective
from millrace_operator.api.types import Spec

CRD = crd.render_crd()
VERSION = CRD["spec"]["versions"][0]
ROOT = VERSION["schema"]["openAPIV3Schema"]


def walk(schema: dict[str, Any], path: str = "") -> Any:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}")
    for key, suffix in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(key), dict):
            yield from walk(schema[key], path + suffix)


FIELDS = dict(walk(ROOT))


def test_the_files_agree_with_the_types() -> None:
    assert crd.main(["--check"]) == 0
    assert yaml.safe_load(crd.CRD_PATH.read_text()) == CRD
    assert crd.CHART_CRD_PATH.read_text() == crd.CRD_PATH.read_text()


def test_a_stale_file_is_noticed_and_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = (tmp_path / "a" / "crd.yaml", tmp_path / "b" / "crd.yaml")
    monkeypatch.setattr(crd, "CRD_PATH", paths[0])
    monkeypatch.setattr(crd, "CHART_CRD_PATH", paths[1])
    assert crd.main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert crd.main([]) == 0
    assert crd.main(["--check"]) == 0


def test_it_is_small_enough_for_client_side_apply() -> None:
    assert len(crd.render_text()) < 200_000


def test_every_field_is_described() -> None:
    bare = [path for path, schema in FIELDS.items() if path and not schema.get("description")]
    assert [path for path in bare if not path.endswith(("{}", "[]", ".metadata"))] == []


def test_everything_that_people_write_is_bounded() -> None:
    for path, schema in FIELDS.items():
        if not path.startswith(".spec"):
            continue
        if schema.get("type") == "string" and "enum" not in schema:
            assert "maxLength" in schema, path
        if schema.get("type") == "array":
            assert "maxItems" in schema, path
        if "additionalProperties" in schema:
            assert "maxProperties" in schema, path


def test_defaults_are_whole_and_never_inside_list_items() -> None:
    defaults = {path: schema["default"] for path, schema in FIELDS.items() if "default" in schema}
    assert not [path for path in defaults if path.startswith(".spec") and "[]" in path]
    scaling = FIELDS[".spec.scaling"]
    inner = {name: p["default"] for name, p in scaling["properties"].items() if "default" in p}
    assert scaling["default"] == inner
    assert FIELDS[".spec.rollout"]["default"] == {
        "strategy": "Automatic",
        "schedulingTimeout": "5m",
        "progressDeadline": "30m",
        "rollback": "Automatic",
    }


def test_a_canary_of_nothing_more_is_one_replica_for_ten_minutes() -> None:
    canary = FIELDS[".spec.rollout.canary"]
    defaults = {name: field["default"] for name, field in canary["properties"].items()}
    assert defaults == {"replicas": 1, "duration": "10m", "promotion": "Automatic"}
    assert canary["properties"]["replicas"]["x-kubernetes-int-or-string"]


def test_no_schema_keeps_what_a_structural_schema_may_not_have() -> None:
    for path, schema in FIELDS.items():
        assert not {"$ref", "$defs", "title", "const", "exclusiveMinimum"} & set(schema), path
        assert schema.get("additionalProperties") is not False, path


def test_printer_columns_and_subresources() -> None:
    assert [c["name"] for c in VERSION["additionalPrinterColumns"]] == [
        "Model", "Ready", "State", "Fetched", "Replicas", "Desired", "Device", "URL", "Age",
    ]  # fmt: skip
    assert set(VERSION["subresources"]) == {"status", "scale"}
    assert CRD["spec"]["names"]["shortNames"] == ["infsvc"]


def test_objectives_are_a_map_by_metric_and_percentile() -> None:
    schema = FIELDS[".spec.scaling.objectives"]
    assert schema["x-kubernetes-list-map-keys"] == ["metric", "percentile"]
    assert sorted(schema["items"]["required"]) == ["metric", "percentile", "target"]


def test_each_rule_says_what_to_write_and_where() -> None:
    for rule in rules.SPEC_RULES:
        assert rule["fieldPath"].lstrip(".").split(".")[0] in Spec.model_json_schema()["properties"]
        assert "write" in rule["message"]


def test_every_duration_is_guarded_by_a_match() -> None:
    for rule in [*rules.SPEC_RULES, *rules.ROOT_RULES]:
        text = rule["rule"]
        assert text.count("duration(") == 2 * text.count(".matches('^([0-9]"), text


def test_the_parser_ignores_what_it_does_not_know() -> None:
    spec = Spec.model_validate({"model": {"uri": "file:///m", "quantization": {}}, "workload": "Bulk"})
    assert spec.scaling.min_replicas == 1


def test_the_parser_refuses_what_the_schema_refuses() -> None:
    with pytest.raises(ValidationError):
        Spec.model_validate({"model": {"uri": "file:///m"}, "scaling": {"minReplicas": -1}})


@pytest.mark.parametrize("metric", ["EndToEndLatency", "QueueTime"])
def test_every_latency_can_be_an_objective_and_no_other_word(metric: str) -> None:
    assert Objective.model_validate({"metric": metric, "percentile": 99, "target": "30s"}).metric == metric
    for word in (metric.lower(), "Latency", ""):
        with pytest.raises(ValidationError):
            Objective.model_validate({"metric": word, "percentile": 99, "target": "30s"})


def test_an_objective_has_its_target_in_seconds() -> None:
    objective = Objective.model_validate({"metric": "TimePerOutputToken", "percentile": 95, "target": "50ms"})
    assert objective.target_seconds == pytest.approx(0.05)
