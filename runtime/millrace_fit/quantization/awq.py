"""Matrices of 4 bits as AutoAWQ writes them."""

from typing import Final

from millrace_fit.fields import Fields
from millrace_fit.quantization.groups import read_group
from millrace_fit.quantization.rules import (
    HEADS,
    MOST_PATTERNS,
    ROUTERS,
    Quantization,
    Rule,
    Targets,
    quantize_all_but,
    read_names,
)
from millrace_fit.quantization.scheme import Kind, Packing, Scheme

_ADVICE: Final = "only AWQ in 4 bits and version gemm is read: take such a checkpoint, or the unquantised one"


def read_awq(fields: Fields) -> Quantization:
    """Return what `quant_method: awq` says. Raises ArchitectureError, which names the field."""
    for name in ("bits", "w_bit"):
        fields.refuse(name, unless=(4, None), advice=_ADVICE)
    for name in ("version", "format", "checkpoint_format"):
        fields.refuse(name, unless=("gemm", "GEMM", None), advice=_ADVICE)
    fields.refuse("backend", unless=("autoawq", "auto", "gemm", None), advice=_ADVICE)
    group = read_group(fields, "q_group_size" if "q_group_size" in fields else "group_size", default=128)
    # Without zero points by config.json the files have them too: all are the middle, 8.
    fields.flag("zero_point", default=True)
    scheme = Scheme(Kind.INT4, Packing.AWQ, group=group, has_zeros=True)
    # AutoAWQ leaves out the modules with any of these in their names, and transformers those with such words:
    # by `gate` a router, and perhaps gate_proj.
    left_out = Targets(pieces=tuple(read_names(fields.raw, "modules_to_not_convert", most=MOST_PATTERNS)))
    first = (Rule(left_out, None, is_assumed=True),)
    return quantize_all_but("awq", scheme, HEADS, ROUTERS, first=first)
