"""The facts of a model before it is fetched. They are small enough for a pod's termination message."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from millrace_fit.dtypes import choose_served_type, choose_stored_type
from millrace_fit.errors import ArchitectureError, FactsError
from millrace_fit.families.registry import declare, find_family
from millrace_fit.headers import StoredTensor
from millrace_fit.shape import DecoderShape
from millrace_fit.shape_json import read_count, read_shape, write_shape
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
    shape: DecoderShape | None
    """None for an unsupported architecture."""
    fault: str | None
    """Why no replica can serve the model, in a sentence."""

    @property
    def num_parameters(self) -> int:
        """The count of numbers in the files."""
        return sum(self.stored.values())

    def to_json(self) -> str:
        """Return one line of less than 1,800 bytes in UTF-8."""
        values = {
            "architecture": self.architecture,
            "stored": dict(self.stored),
            "served_type": self.served_type,
            "shape": None if self.shape is None else write_shape(self.shape),
            "fault": self.fault,
        }
        return json.dumps(values, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "ModelFacts":
        """Return what `to_json` wrote, without unknown fields. Raises FactsError."""
        try:
            values = json.loads(text)
            shape, fault = values["shape"], values["fault"]
            return cls(
                architecture=shorten(str(values["architecture"]), MAX_NAME),
                stored={str(name): read_count(count, least=0) for name, count in values["stored"].items()},
                served_type=str(values["served_type"]),
                shape=None if shape is None else read_shape(shape),
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
        name = find_family(config).architecture
        family, shape, _ = declare(config)
        fault = find_fault(family, shape, tensors)
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
