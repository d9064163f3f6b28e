"""Write the CRD: `python -m millrace_operator.api.crd [--check]`.

The API server refuses the schema of `model_json_schema()`: a structural schema has no references, titles,
null branches or null defaults. So this module converts pydantic's schemas.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from millrace_operator.api import rules
from millrace_operator.api.types import Spec, Status
from millrace_runtime import contract

Schema = dict[str, Any]


def render_schema(model: type[BaseModel]) -> Schema:
    """Return the structural schema of `model`, in its serialised (camelCase) names."""
    raw = model.model_json_schema(by_alias=True, mode="validation")
    return _convert(raw, raw.get("$defs", {}))


def _convert(node: Schema, definitions: dict[str, Schema]) -> Schema:
    node = _resolve(node, definitions)
    if node.pop("x-kubernetes-int-or-string", False):
        kept: Schema = {key: node[key] for key in ("description", "default") if key in node}
        return {
            **kept,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
        }
    converted = {key: value for key, value in node.items() if key not in ("title", "$defs")}
    if isinstance(converted.get("additionalProperties"), dict):
        converted["additionalProperties"] = _convert(converted["additionalProperties"], definitions)
    if "items" in converted:
        converted["items"] = _convert(converted["items"], definitions)
    if "properties" in converted:
        converted["properties"] = {
            name: _convert(child, definitions) for name, child in converted["properties"].items()
        }
    if "default" in converted and converted["default"] in (None, {}, []):
        del converted["default"]
    return converted


def _resolve(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """Inline a reference and remove a null branch. The keys beside them win."""
    node = dict(node)
    if "anyOf" in node and "x-kubernetes-int-or-string" not in node:
        branches = [branch for branch in node.pop("anyOf") if branch.get("type") != "null"]
        if len(branches) != 1:
            raise ValueError(f"a structural schema has no alternatives: {branches}")
        node = {**branches[0], **node}
    while "$ref" in node:
        target = definitions[node.pop("$ref").rsplit("/", 1)[1]]
        node = {**target, **node}
    return node


REPOSITORY = Path(__file__).resolve().parents[3]
CRD_PATH = REPOSITORY / "crds" / "inferenceservices.yaml"
CHART_CRD_PATH = REPOSITORY / "charts" / "millrace" / "files" / "inferenceservices.yaml"
HEADER = "# Generated from operator/millrace_operator/api; write: make crds\n"

COLUMNS: list[dict[str, Any]] = [
    {"name": "Model", "type": "string", "jsonPath": ".status.model.servedName"},
    {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"},
    {"name": "State", "type": "string", "jsonPath": ".status.conditions[?(@.type=='UpToDate')].reason"},
    {"name": "Fetched", "type": "string", "jsonPath": ".status.model.fetched"},
    {"name": "Replicas", "type": "integer", "jsonPath": ".status.readyReplicas"},
    {"name": "Desired", "type": "integer", "jsonPath": ".status.scaling.desiredReplicas"},
    {
        "name": "Device",
        "type": "string",
        "jsonPath": ".status.model.device",
        "priority": 1,  # with -o wide alone
    },
    {"name": "URL", "type": "string", "jsonPath": ".status.url"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
]


def render_crd() -> dict[str, Any]:
    """Return the CustomResourceDefinition as a raw manifest."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{contract.PLURAL}.{contract.GROUP}"},
        "spec": {
            "group": contract.GROUP,
            "names": {
                "kind": contract.KIND,
                "listKind": f"{contract.KIND}List",
                "plural": contract.PLURAL,
                "singular": contract.KIND.lower(),
                "shortNames": ["infsvc"],
                "categories": ["all"],
            },
            "scope": "Namespaced",
            "versions": [_render_version()],
        },
    }


def _render_version() -> dict[str, Any]:
    return {
        "name": contract.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _render_root()},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": COLUMNS,
    }


def _render_root() -> Schema:
    return {
        "description": "A language model served by replicas that follow its load.",
        "type": "object",
        "required": ["spec"],
        "x-kubernetes-validations": rules.ROOT_RULES,
        "properties": {
            "apiVersion": {"type": "string", "description": "millrace.dev/v1alpha1"},
            "kind": {"type": "string", "description": "InferenceService"},
            "metadata": {"type": "object"},
            "spec": {**render_schema(Spec), "description": "What is wanted."},
            "status": {**render_schema(Status), "description": "What is observed; written by the operator."},
        },
    }


class _Dumper(yaml.SafeDumper):
    """YAML without anchors, which people can't read as kubectl does. A list of words takes one line."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  the signature is yaml's
        return True

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> Any:  # noqa: FBT001
        is_of_words = all(isinstance(one, str) for one in sequence)
        return super().represent_sequence(tag, sequence, flow_style=is_of_words or flow_style)


def render_text() -> str:
    """Return the CRD as YAML, as the repository has it."""
    return HEADER + yaml.dump(render_crd(), Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


def main(argv: list[str]) -> int:
    """Write the CRD; with --check compare the files with the types. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m millrace_operator.api.crd", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is out of date")
    arguments = parser.parse_args(argv)
    text = render_text()
    stale = [path for path in (CRD_PATH, CHART_CRD_PATH) if not path.exists() or path.read_text() != text]
    if arguments.check:
        for path in stale:
            sys.stderr.write(f"{path} is out of date; run this command without --check\n")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
