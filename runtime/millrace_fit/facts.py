"""The facts of a model before it is fetched. They are small enough for a pod's termination message."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from millrace_fit.errors import ArchitectureError, FactsError
from millrace_fit.families.registry import Declared, declare, find_family, name_tensors
from millrace_fit.files.dtypes import choose_served_type, choose_stored_type
from millrace_fit.files.headers import StoredTensor
from millrace_fit.memory import Weights
from millrace_fit.module_schemes import ModuleSchemes, find_schemes, read_schemes, write_schemes
from millrace_fit.settings import Settings
from millrace_fit.shape import DecoderShape
from millrace_fit.shape_json import read_count, read_shape, write_shape
from millrace_fit.tensors import find_fault, list_needed

MAX_BYTES: Final = 1800
"""In JSON. Six containers of a pod share 12 KiB of termination messages."""
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
    """The count of weights in the files, by the types in their headers. INT4 has no such type."""
    served_type: str
    """The type in which a replica serves the weights and keeps the KV cache, such as bfloat16."""
    shape: DecoderShape | None
    """None for an unsupported architecture."""
    fault: str | None
    """Why no replica can serve the model, in a sentence."""
    quantized: tuple[ModuleSchemes, ...] = ()
    """How the matrices are quantised that a replica keeps as they are stored."""

    @property
    def num_parameters(self) -> int:
        """The count of weights in the files."""
        return sum(self.stored.values())

    @property
    def kinds(self) -> str:
        """How these matrices are quantised, such as `FP8` or `FP8 and INT4`; empty if there are none."""
        schemes = {
            scheme.kind.upper() for one in self.quantized for scheme in one.schemes if scheme is not None
        }
        return " and ".join(sorted(schemes))

    def weigh(self, settings: Settings) -> Weights:
        """Return the weights of a supported model as a replica with these settings keeps them."""
        assert self.shape is not None, "nothing is known of its weights"
        return Weights(self.shape, self.served_type, settings, self.quantized)

    def to_json(self) -> str:
        """Return one line of at most MAX_BYTES in UTF-8."""
        values: dict[str, Any] = {
            "architecture": self.architecture,
            "stored": dict(self.stored),
            "served_type": self.served_type,
            "shape": None if self.shape is None else write_shape(self.shape),
            "fault": self.fault,
        }
        if self.quantized:
            left = MAX_BYTES - len(_write(values).encode()) - len(',"quantized":')
            values["quantized"] = write_schemes(self.quantized, left)
        return _write(values)

    @classmethod
    def from_json(cls, text: str) -> "ModelFacts":
        """Return what `to_json` wrote, without unknown fields. Raises FactsError."""
        try:
            values = json.loads(text)
            shape = None if values["shape"] is None else read_shape(values["shape"])
            fault = values["fault"]
            return cls(
                architecture=shorten(str(values["architecture"]), MAX_NAME),
                stored={str(name): read_count(count, least=0) for name, count in values["stored"].items()},
                served_type=str(values["served_type"]),
                shape=shape,
                fault=None if fault is None else shorten(str(fault)),
                quantized=() if shape is None else read_schemes(values.get("quantized"), shape),
            )
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise FactsError(
                "these are no facts of a model, or those of another version of Millrace"
            ) from error


def find_facts(config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> ModelFacts:
    """Return a model's facts, by its config.json and the tensors in all of its files' headers.

    The facts of a model that no replica can serve say why.
    """
    tensors = name_tensors(config, tensors)
    stored = _count_numbers(tensors)
    shape, served_type, fault, quantized = None, "", None, tuple[ModuleSchemes, ...]()
    try:
        name = find_family(config).architecture
        declared = declare(config).fit_to(tensors)
        shape = declared.shape
        fault = find_fault(declared, tensors)
        served_type = choose_served_type(config, choose_stored_type(stored))
        if fault is None and declared.quantization.is_quantized:
            quantized, stored = find_schemes(declared), _count_weights(declared, tensors)
    except ArchitectureError as error:
        name, fault = _name_architecture(config), str(error)
    return ModelFacts(
        architecture=shorten(name, MAX_NAME),
        stored=dict(stored.most_common(MAX_TYPES)),
        served_type=served_type,
        shape=shape,
        fault=None if fault is None else shorten(fault),
        quantized=quantized,
    )


def _count_numbers(tensors: Mapping[str, StoredTensor]) -> Counter[str]:
    """Return the count of numbers of each type in headers."""
    stored: Counter[str] = Counter()
    for tensor in tensors.values():
        stored[tensor.dtype] += tensor.num_numbers
    return stored


def _count_weights(declared: Declared, tensors: Mapping[str, StoredTensor]) -> Counter[str]:
    """Return the count of weights of each type, whether they lie in words or alone, and without scales."""
    stored: Counter[str] = Counter()
    for needed in list_needed(declared):
        if needed.num_weights:
            dtype = tensors[needed.name].dtype
            stored[needed.scheme.kind.upper() if needed.scheme else dtype] += needed.num_weights
    return stored


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


def _write(values: Mapping[str, Any]) -> str:
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False)


def _count_bytes(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode()) - len('""')
