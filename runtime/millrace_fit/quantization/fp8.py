"""Matrices of 8-bit floats: as DeepSeek, Qwen and transformers write them, AutoFP8, and FBGEMM."""

import re
from typing import Any, Final

from millrace_fit.errors import ArchitectureError
from millrace_fit.fields import Fields
from millrace_fit.quantization.groups import check_group
from millrace_fit.quantization.rules import (
    HEADS,
    ROUTERS,
    Quantization,
    quantize_all_but,
    read_names,
    read_runs,
)
from millrace_fit.quantization.scheme import Kind, Packing, Scheme

_SIZE: Final = re.compile("[0-9]{1,18}")


def read_fp8(fields: Fields) -> Quantization:
    """Return what `quant_method: fp8` says. Raises ArchitectureError, which names the field.

    AutoFP8 does not write weight_block_size, and has one scale for a matrix. transformers writes null for
    that, and has another name for the scale.
    """
    fields.refuse("fmt", unless=("e4m3", None), advice="only e4m3 is read: take the unquantised checkpoint")
    fields.refuse("expert_dtype", unless=("fp8", None), advice="only fp8 is read")
    fields.refuse("modules_to_convert", unless=(None, []), advice="only linear modules are read in FP8")
    is_autofp8 = "weight_block_size" not in fields
    rows, group = read_block(fields, "weight_block_size")
    scale = "weight_scale" if is_autofp8 else "weight_scale_inv"
    scheme = Scheme(Kind.FP8, Packing.PLAIN, rows, group, scale=scale, are_inputs_rounded=True)
    left_out = read_runs(read_names(fields.raw, "modules_to_not_convert", "ignored_layers"))
    return quantize_all_but("fp8", scheme, HEADS, ROUTERS, left_out)


def read_fbgemm(fields: Fields) -> Quantization:
    """Return what `quant_method: fbgemm_fp8` says: a scale for each output. Raises ArchitectureError."""
    left_out = read_runs(read_names(fields.raw, "modules_to_not_convert"))
    scheme = Scheme(Kind.FP8, Packing.PLAIN, are_inputs_rounded=True)
    return quantize_all_but("fbgemm_fp8", scheme, HEADS, ROUTERS, left_out)


def read_block(fields: Fields, name: str) -> tuple[int | None, int | None]:
    """Return the outputs and the inputs of a block; None twice without one. Raises ArchitectureError."""
    block = fields.raw.get(name)
    if isinstance(block, str):  # "128x128", as old versions of compressed-tensors wrote it
        block = [int(size) if _SIZE.fullmatch(size) else 0 for size in block.split("x", 2)]
    match block:
        case None:
            return None, None
        case [rows, group] if _is_size(rows) and _is_size(group):
            return rows, check_group(group, name)
    raise ArchitectureError(f"config.json has {name} {str(block)[:80]}; it must be two counts above 0")


def _is_size(size: Any) -> bool:
    return type(size) is int and size > 0  # true and false are integers, too
