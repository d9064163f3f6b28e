"""A decoder's shape as JSON, and back: with fields missing, as older versions wrote it, or unknown ones."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from typing import Any, Final, get_type_hints

from millrace_fit.fields import MAX_COUNT, MOST_LAYERS
from millrace_fit.rotary import LinearScaling, Llama3Scaling, LongRopeScaling, RotaryScaling, YarnScaling
from millrace_fit.shape import (
    MOST_KINDS,
    AttentionShape,
    DecoderShape,
    ExpertsShape,
    LayerShape,
    MlpShape,
    Run,
)

_SCALINGS: Final = {
    "fast": YarnScaling,
    "low_frequency_factor": Llama3Scaling,
    "factor": LinearScaling,
    "magnitude": LongRopeScaling,
}
"""By a field that no later one of them has."""
_MLPS: Final = {"num_experts": ExpertsShape, "width": MlpShape}
_COUNTS: Final = {int, int | None}
_FACTORS: Final = {float, float | None}


def write_shape(shape: DecoderShape) -> dict[str, Any]:
    """Return the shape for `json.dumps`, without fields that have their default."""
    return _without_defaults(shape) | {
        "scaling": None if shape.scaling is None else _write_scaling(shape.scaling),
        "kinds": [
            _without_defaults(kind)
            | {"attention": _without_defaults(kind.attention), "mlp": _without_defaults(kind.mlp)}
            for kind in shape.kinds
        ],
        "runs": [[run.kinds, run.count] for run in shape.runs],
    }


def _write_scaling(scaling: RotaryScaling) -> dict[str, Any]:
    """Return a scaling without LongRoPE's factors, of which there may be a hundred: no size needs them."""
    return {name: value for name, value in asdict(scaling).items() if not isinstance(value, tuple)}


def _without_defaults(values: Any) -> dict[str, Any]:
    return {
        field.name: getattr(values, field.name)
        for field in fields(values)
        if getattr(values, field.name) != field.default
    }


def read_shape(values: Mapping[str, Any]) -> DecoderShape:
    """Return the shape that `write_shape` wrote. Raises ValueError, TypeError, KeyError or AttributeError."""
    if "kinds" not in values:
        values = _read_older(values)
    kinds = tuple(_read_layer(kind) for kind in values["kinds"])
    runs = tuple(_read_run(run, len(kinds)) for run in values["runs"])
    scaling = None if values.get("scaling") is None else _read_one(_SCALINGS, values["scaling"])
    read: dict[str, Any] = {"kinds": kinds, "runs": runs, "scaling": scaling}
    shape: DecoderShape = _read(DecoderShape, values, read)
    if not 1 <= len(kinds) <= MOST_KINDS or not 1 <= shape.num_layers <= MOST_LAYERS:
        raise ValueError("layers")
    return shape


def _read_layer(values: Mapping[str, Any]) -> LayerShape:
    attention: AttentionShape = _read(AttentionShape, values["attention"])
    if attention.num_heads % attention.num_kv_heads:
        raise ValueError("num_heads")
    layer: LayerShape = _read(
        LayerShape, values, {"attention": attention, "mlp": _read_one(_MLPS, values["mlp"])}
    )
    return layer


def _read_one(kinds: Mapping[str, type], values: Mapping[str, Any]) -> Any:
    """Return the one of several kinds that these fields are of."""
    kind = next((kind for name, kind in kinds.items() if name in values), None)
    if kind is None:
        raise KeyError(values)
    return _read(kind, values)


def _read_run(values: Any, num_kinds: int) -> Run:
    kinds, count = values
    if not kinds or any(type(kind) is not int or not 0 <= kind < num_kinds for kind in kinds):
        raise ValueError(kinds)
    return Run(tuple(kinds), read_count(count, least=1))


def _read(kind: type, values: Mapping[str, Any], read: Mapping[str, Any] | None = None) -> Any:
    """Return a dataclass with the known ones of these values. `read` has those of other types."""
    known: dict[str, Any] = dict(read or {})
    hints = get_type_hints(kind)
    for field in fields(kind):
        if field.name in known or (field.name not in values and field.default is not MISSING):
            continue
        known[field.name] = _read_value(hints[field.name], values[field.name])
    return kind(**known)


def _read_value(hint: Any, value: Any) -> Any:
    if hint in _COUNTS:
        return None if value is None and hint is not int else read_count(value, least=1)
    if hint in _FACTORS:
        return None if value is None and hint is not float else _read_factor(value)
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def read_count(value: Any, least: int) -> int:
    """Return a reported count. Raises ValueError if it can be no count."""
    if type(value) is not int or not least <= value <= MAX_COUNT:
        raise ValueError(value)
    return value


def _read_factor(value: Any) -> float:
    """Return a reported factor. Raises ValueError if no config can have it."""
    if type(value) not in (int, float) or not 0 < value <= MAX_COUNT:  # and not NaN
        raise ValueError(value)
    return float(value)


def _read_older(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the shape of a version whose models had equal layers and one MLP in each."""
    attention = {name: values[name] for name in ("num_heads", "num_kv_heads", "head_dim", "window")}
    attention |= {"has_bias": values["has_qkv_bias"], "has_output_bias": values["has_output_bias"]}
    mlp = {"width": values["mlp_width"], "has_bias": values["has_mlp_bias"]}
    layers = {"kinds": [{"attention": attention, "mlp": mlp}], "runs": [[[0], values["num_layers"]]]}
    return {**values, **layers}
