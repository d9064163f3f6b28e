"""Experts of 4-bit floats as gpt-oss is published: blocks of 32 inputs, each with a power of two."""

import re
from typing import Final

from millrace_fit.fields import Fields
from millrace_fit.quantization.rules import Quantization, Rule, Targets, read_names, read_runs
from millrace_fit.quantization.scheme import Kind, Packing, Scheme

_EXPERTS: Final = Targets(patterns=(re.compile(r".*\.experts\.\d+\."),))
"""All that the method rounds, in transformers, too."""
_BLOCK: Final = 32


def read_mxfp4(fields: Fields) -> Quantization:
    """Return what `quant_method: mxfp4` says. Raises ArchitectureError, which names the field."""
    left_out = read_runs(read_names(fields.raw, "modules_to_not_convert"))
    scheme = Scheme(Kind.MXFP4, Packing.BLOCKS, group=_BLOCK, scale="weight_scales")
    return Quantization("mxfp4", (Rule(left_out, None), Rule(_EXPERTS, scheme)))
