"""Structural schemas for a CRD from pydantic's JSON schemas.

A naive `model_json_schema()` is refused by the API server: references, titles, null branches and null
defaults have no place in a structural schema.
"""

from typing import Any

from pydantic import BaseModel

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
    """Inline a reference and take away a null branch; what stands beside them wins."""
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
