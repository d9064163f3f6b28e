"""The methods of quantisation by quant_method: the reader of each, and the refusals of unread ones."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from millrace_fit.errors import ArchitectureError
from millrace_fit.fields import Fields
from millrace_fit.quantization.awq import read_awq
from millrace_fit.quantization.compressed_tensors import read_compressed_tensors
from millrace_fit.quantization.fp8 import read_fbgemm, read_fp8
from millrace_fit.quantization.gptq import read_gptq
from millrace_fit.quantization.modelopt import read_modelopt
from millrace_fit.quantization.mxfp4 import read_mxfp4
from millrace_fit.quantization.rules import NOT_QUANTIZED, Quantization

READERS: Final[Mapping[str, Callable[[Fields], Quantization]]] = MappingProxyType(
    {
        "compressed-tensors": read_compressed_tensors,
        "fp8": read_fp8,
        "fbgemm_fp8": read_fbgemm,
        "modelopt": read_modelopt,
        "awq": read_awq,
        "gptq": read_gptq,
        "mxfp4": read_mxfp4,
    }
)
"""By quant_method. Each raises ArchitectureError, which names the field."""
_FP8: Final = "take the model's FP8 checkpoint, or the unquantised one"
_INT4: Final = "take the model's AWQ or GPTQ checkpoint, or the unquantised one with weights Int4"
_INT8: Final = "take the model's FP8 or INT8 checkpoint, or the unquantised one with weights Int8"
_AUTO_ROUND: Final = "export it from AutoRound in the format auto_gptq or auto_awq"
REFUSED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bitsandbytes": _INT4,
        "bitnet": _INT4,
        "aqlm": _INT4,
        "auto-round": _AUTO_ROUND,
        "intel/auto-round": _AUTO_ROUND,
        "eetq": _INT8,
        "exl2": _INT4,
        "exl3": _INT4,
        "fp_quant": _FP8,
        "gguf": "take the model's safetensors files: " + _INT4,
        "higgs": _INT4,
        "hqq": _INT4,
        "modelopt_fp4": _FP8,
        "modelopt_mxfp8": _FP8,
        "nvfp4": _FP8,
        "quanto": _INT8,
        "quark": "take a checkpoint of compressed-tensors or ModelOpt, or the unquantised one",
        "spqr": _INT4,
        "torchao": _FP8,
        "vptq": _INT4,
    }
)
"""What to take instead, by quant_method."""
_FIELDS: Final = ("quantization_config", "compression_config")
_OLD: Final = {"sparseml": "compressed-tensors"}


def has_quantization(raw: Mapping[str, Any]) -> bool:
    """Whether a config.json says by itself that matrices are quantised."""
    return any(raw.get(name) is not None for name in _FIELDS)


def add_modelopt(raw: Mapping[str, Any], beside: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json with what hf_quant_config.json says, where old versions of ModelOpt wrote it."""
    return {**raw, _FIELDS[0]: {"quant_method": "modelopt", **beside}}


def read_quantization(raw: Mapping[str, Any]) -> Quantization:
    """Return what a config.json says about its matrices. Raises ArchitectureError, which names the field."""
    field = next((name for name in _FIELDS if raw.get(name) is not None), None)
    if field is None:
        return NOT_QUANTIZED
    config = raw[field]
    if not isinstance(config, Mapping):
        raise ArchitectureError(f"config.json has {field} {str(config)[:80]!r}; it must be an object")
    method = config.get("quant_method") or _guess(config, field)
    if not isinstance(method, str):
        raise ArchitectureError(
            f"config.json has a {field} without a quant_method; readable are {', '.join(READERS)}: take the "
            "config.json that came with the weights, or the unquantised checkpoint"
        )
    method = _OLD.get(method, method)
    if method in READERS:
        return READERS[method](Fields(config))
    instead = REFUSED.get(method, "take one of those, or the unquantised checkpoint")
    raise ArchitectureError(
        f"config.json has the quant_method {method[:40]!r}, which replicas don't read; they read "
        f"{', '.join(READERS)}: {instead}"
    )


def _guess(config: Mapping[str, Any], field: str) -> str | None:
    """Return the method of an old config that names none; None if it is unknown."""
    if config.get("load_in_4bit") or config.get("load_in_8bit"):
        return "bitsandbytes"
    if config.get("quant_algo") is not None or config.get("quant_library") == "modelopt":
        return "modelopt"
    return "compressed-tensors" if field == "compression_config" else None
