"""The facts of a model before it is fetched. They are small enough for a pod's termination message."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, get_type_hints

from millrace_fit.config import (
    FAMILIES,
    MAX_COUNT,
    LinearScaling,
    Llama3Scaling,
    LlamaConfig,
    RotaryScaling,
    find_architecture_name,
    parse_llama_config,
)
from millrace_fit.dtypes import choose_served_type, choose_stored_type
from millrace_fit.errors import ArchitectureError, FactsError
from millrace_fit.headers import StoredTensor
from millrace_fit.tensors import find_fault

MAX_FAULT: Final = 400
"""Bytes in JSON. A model's author chooses names of tensors and values of config.json, of any length."""
MAX_NAME: Final = 80
"""Bytes in JSON."""
MAX_TYPES: Final = 8
"""Stored types, the most common ones. Few models have more than three."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """All inputs of the arithmetic. `memory.py` computes the rest, such as a shard's part."""

    architecture: str
    """The name in config.json; empty without one."""
    stored: Mapping[str, int]
    """The count of numbers in the files, by the types in their headers."""
    served_type: str
    """The type in which a replica serves the weights and keeps the KV cache, such as bfloat16."""
    shape: LlamaConfig | None
    """None for an unsupported architecture."""
    fault: str | None
    """Why no replica can serve the model, in a sentence."""

    @property
    def num_parameters(self) -> int:
        """The count of numbers in the files."""
        return sum(self.stored.values())

    def to_json(self) -> str:
        """Return one line of less than 1,800 bytes in UTF-8."""
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "ModelFacts":
        """Return what `to_json` wrote, without unknown fields. Raises FactsError."""
        try:
            values = json.loads(text)
            shape, fault = values["shape"], values["fault"]
            return cls(
                architecture=shorten(str(values["architecture"]), MAX_NAME),
                stored={str(name): _read_count(count, least=0) for name, count in values["stored"].items()},
                served_type=str(values["served_type"]),
                shape=None if shape is None else _read_shape(shape),
                fault=None if fault is None else shorten(str(fault)),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FactsError(
                "these are no facts of a model, or those of another version of Millrace"
            ) from error


def find_facts(config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> ModelFacts:
    """Return a model's facts, by its config.json and the tensors in all of its files' headers.

    The facts of a model that no replica can serve say why.
    """
    stored: Counter[str] = Counter()
    for tensor in tensors.values():
        stored[tensor.dtype] += tensor.num_numbers
    shape, served_type, fault = None, "", None
    try:
        name = find_architecture_name(config)
        shape = parse_llama_config(config, FAMILIES[name])
        fault = find_fault(shape, tensors)
        served_type = choose_served_type(config, choose_stored_type(stored))
    except ArchitectureError as error:
        name, fault = _name_architecture(config), str(error)
    return ModelFacts(
        architecture=shorten(name, MAX_NAME),
        stored=dict(stored.most_common(MAX_TYPES)),
        served_type=served_type,
        shape=shape,
        fault=None if fault is None else shorten(fault),
    )


def _name_architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def shorten(text: str, most: int = MAX_FAULT) -> str:
    """Return a text of any origin as one line of at most so many bytes in JSON."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    if len(line) <= most and _count_bytes(line) <= most:
        return line
    kept = line[:most]
    while _count_bytes(f"{kept}…") > most:
        kept = kept[:-1]
    return f"{kept}…"


def _count_bytes(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode()) - len('""')


def _read_shape(values: Mapping[str, Any]) -> LlamaConfig:
    known = {name: values[name] for name in LlamaConfig.__dataclass_fields__}
    shape = LlamaConfig(**(known | {"scaling": _read_scaling(values["scaling"])}))
    for name, kind in get_type_hints(LlamaConfig).items():
        value = getattr(shape, name)
        if kind is int or (name == "window" and value is not None):
            _read_count(value, least=1)
        elif kind is float:
            _read_factor(value)
        elif kind is bool and not isinstance(value, bool):
            raise ValueError(name)
    if shape.num_heads % shape.num_kv_heads:
        raise ValueError("num_heads")
    return shape


def _read_count(value: Any, least: int) -> int:
    """Return a reported count. Raises ValueError if it can be no count."""
    if type(value) is not int or not least <= value <= MAX_COUNT:
        raise ValueError(value)
    return value


def _read_factor(value: Any) -> float:
    """Return a reported factor. Raises ValueError if no config can have it."""
    if type(value) not in (int, float) or not 0 < value <= MAX_COUNT:  # and not NaN
        raise ValueError(value)
    return float(value)


def _read_scaling(values: Mapping[str, Any] | None) -> RotaryScaling | None:
    if values is None:
        return None
    if "original_length" not in values:
        return LinearScaling(_read_factor(values["factor"]))
    return Llama3Scaling(
        _read_factor(values["factor"]),
        _read_factor(values["low_frequency_factor"]),
        _read_factor(values["high_frequency_factor"]),
        _read_count(values["original_length"], least=1),
    )
