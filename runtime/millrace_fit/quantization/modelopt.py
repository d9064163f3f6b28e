"""Matrices of 8-bit floats as NVIDIA's ModelOpt writes them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from millrace_fit.errors import ArchitectureError
from millrace_fit.fields import Fields
from millrace_fit.quantization.rules import (
    HEADS,
    ROUTERS,
    Quantization,
    quantize_all_but,
    read_names,
    read_wildcards,
)
from millrace_fit.quantization.scheme import Kind, Packing, Scheme

_ALGORITHMS: Final[Mapping[str, Scheme]] = MappingProxyType(
    {
        "FP8": Scheme(Kind.FP8, Packing.PLAIN, rows=None, are_inputs_rounded=True),
        "FP8_PER_CHANNEL_PER_TOKEN": Scheme(Kind.FP8, Packing.PLAIN, are_inputs_rounded=True),
        "FP8_PB_WO": Scheme(Kind.FP8, Packing.PLAIN, rows=128, group=128),
    }
)
"""By quant_algo, in capitals."""


def read_modelopt(fields: Fields) -> Quantization:
    """Return what `quant_method: modelopt` says. Raises ArchitectureError, which names the field."""
    inner = fields.raw.get("quantization")  # as in hf_quant_config.json
    raw = inner if isinstance(inner, Mapping) else fields.raw
    algorithm = raw.get("quant_algo")
    if algorithm is None and raw.get("kv_cache_quant_algo") is not None:  # of the KV cache alone
        return Quantization("modelopt", ())
    if not isinstance(algorithm, str) or algorithm.upper() not in _ALGORITHMS:
        raise ArchitectureError(
            f"config.json has quant_algo {str(algorithm)[:40]!r}; of ModelOpt's, replicas read "
            f"{', '.join(_ALGORITHMS)}: take the model's FP8 checkpoint, or the unquantised one"
        )
    left_out = read_wildcards(read_names(raw, "ignore", "exclude_modules", "modules_to_not_convert"))
    # Old versions left the head out without saying so.
    return quantize_all_but("modelopt", _ALGORITHMS[algorithm.upper()], HEADS, ROUTERS, left_out)
