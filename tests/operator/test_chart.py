"""What of the chart can be checked without Helm; `helm template` runs in `tests/monitoring/` and `e2e/`."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from millrace_operator.api.types import Spec
from millrace_operator.app.command import build_parser
from millrace_runtime import contract

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "millrace"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
TEMPLATES = {path.name: path.read_text() for path in (CHART / "templates").iterdir()}


def leaves(values: dict[str, Any], path: str = "") -> Any:
    for key, value in values.items():
        here = f"{path}.{key}"
        yield from (
            leaves(value, here)
            if isinstance(value, dict)
            and key
            not in (
                "resources",
                "labels",
                "resourceHours",
                "runtimeVersions",
                "nodeSelector",
                "shortNames",
                "access",
            )
            else [here]
        )


def test_every_value_is_used_and_in_the_schema() -> None:
    used = set(re.findall(r"\.Values(\.[.\w]+)", "\n".join(TEMPLATES.values())))
    assert used == set(leaves(VALUES))
    for path in leaves(VALUES):
        schema = SCHEMA
        for key in path.strip(".").split("."):
            schema = schema["properties"][key]


def test_every_value_has_a_comment() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    for index, line in enumerate(lines):
        if re.match(r"\s*\w+: \S", line) and "{" not in line:
            assert lines[index - 1].strip().startswith("#"), line


def test_no_pod_gets_variables_of_the_services_beside_it() -> None:
    of_pods = [text for text in TEMPLATES.values() if "      serviceAccountName: " in text]
    assert len(of_pods) == 3
    assert all("      enableServiceLinks: false" in text for text in of_pods)


def test_rbac_has_no_wildcard_and_the_operator_reads_one_secret() -> None:
    assert "*" not in TEMPLATES["rbac.yaml"]
    rules = re.findall(r"resources: \[secrets\]\n(.*)\n", TEMPLATES["rbac.yaml"])
    assert rules == [
        f"  resourceNames: [{contract.SECRET_GATEWAY_KEY}]",
        *2 * ["  verbs: [get, list, watch]"],
    ]


def test_the_operator_may_not_write_the_resource_itself() -> None:
    rules = re.search(r"resources: \[inferenceservices\]\n  verbs: \[(.*)\]", TEMPLATES["rbac.yaml"])
    assert rules is not None
    assert rules[1] == "get, list, watch"


def test_status_is_only_patched_and_events_are_never_deleted() -> None:
    rules = dict(re.findall(r"resources: \[(.*)\]\n  verbs: \[(.*)\]", TEMPLATES["rbac.yaml"]))
    assert "configmaps" not in TEMPLATES["rbac.yaml"]
    assert rules["inferenceservices/status, inferenceservices/scale"] == "patch"
    assert rules["events"] == "create, patch"


def test_nodes_are_read_cluster_wide_alone() -> None:
    """A Role that names nodes would give nothing: they are in no namespace."""
    _, _, rest = TEMPLATES["rbac.yaml"].partition('{{- if eq $namespace "" }}\n')
    (rule,) = yaml.safe_load(rest.partition("{{- end }}")[0])
    assert rule == {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}
    assert TEMPLATES["rbac.yaml"].count("nodes") == 1


def read_probes(template: str) -> dict[str, Any]:
    """A probe is plain YAML once its port is filled in."""
    found = re.findall(r"^ {8}(\w+Probe:\n(?: {10}.*\n)+)", TEMPLATES[template], re.MULTILINE)
    text = "".join(re.sub(r"\{\{.*?\}\}", "1", probe) for probe in found)
    probes: dict[str, Any] = yaml.safe_load(text)
    return probes


def test_an_operator_pod_is_ready_within_a_second_of_being_up() -> None:
    """The kubelet asks for readiness right after the startup probe has passed."""
    assert read_probes("operator.yaml")["startupProbe"]["periodSeconds"] == 1


def test_a_gateway_that_waits_for_the_api_server_is_unready_and_not_killed() -> None:
    """/readyz is 503 until both lists have come, which may take longer than any startup probe waits."""
    probes = read_probes("gateway.yaml")
    assert {name: probe["httpGet"]["path"] for name, probe in probes.items()} == {
        "startupProbe": "/livez",
        "readinessProbe": "/readyz",
        "livenessProbe": "/livez",
    }
    assert probes["startupProbe"]["periodSeconds"] == probes["readinessProbe"]["periodSeconds"] == 1


def test_the_operators_flags_exist() -> None:
    flags = set(re.findall(r"- (--[\w-]+)", TEMPLATES["operator.yaml"]))
    assert flags <= {option for action in build_parser()._actions for option in action.option_strings}


def test_the_images_run_the_program() -> None:
    for name in ("operator", "runtime"):
        text = (ROOT / "images" / name / "Containerfile").read_text()
        assert 'ENTRYPOINT ["dumb-init", "--single-child", "--", "millrace"]' in text


def test_the_example_can_be_read() -> None:
    example = yaml.safe_load((ROOT / "examples" / "stories.yaml").read_text())
    spec = Spec.model_validate(example["spec"])
    assert (spec.scaling.min_replicas, spec.scaling.max_replicas) == (1, 4)
    assert {objective.metric.value for objective in spec.scaling.objectives} == {
        "TimeToFirstToken",
        "TimePerOutputToken",
    }
