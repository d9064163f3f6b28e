"""Compile every Triton kernel for a Hopper GPU, in the type named; no GPU is needed.

Run without TRITON_INTERPRET.
"""

import importlib
import sys
from typing import Any

from triton import compile as compile_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

ATTENTION = {"GROUP": 2, "HEAD_DIM": 64, "BLOCK_SIZE": 16, "BLOCK_Q": 8, "BLOCK_M": 16, "BLOCK_N": 64,
             "BLOCK_D": 64, "DOT_IN_FLOAT32": False}  # fmt: skip
CHANGING = {"paged_attention": {"num_rows", "tables_stride"}}
"""Arguments that differ from step to step: a kernel must not be compiled anew for some of their values."""
CONSTANTS: list[tuple[str, dict[str, Any]]] = [
    ("paged_attention", ATTENTION),
    ("kv_write", {"HEAD_DIM": 64, "BLOCK_SIZE": 16, "BLOCK_D": 64}),
    ("rms_norm", {"WIDTH": 200, "BLOCK": 256}),
    ("rotary", {"HALF": 32, "BLOCK": 32}),
    ("silu_mul", {"WIDTH": 1000, "BLOCK": 1024}),
]
INTEGERS = {"starts_ptr": "*i32", "contexts_ptr": "*i32", "tables_ptr": "*i32", "slots_ptr": "*i64"}
TYPES = INTEGERS | {"scale": "fp32", "epsilon": "fp32", "cos_ptr": "*fp32", "sin_ptr": "*fp32"}


def argument_type(name: str, dtype: str) -> str:
    return TYPES.get(name, f"*{dtype}" if name.endswith("_ptr") else "i32")


def compile_for(operation: str, constants: dict[str, Any], dtype: str) -> None:
    module = importlib.import_module(f"millrace_kernels.{operation}.triton_kernel")
    kernel = getattr(module, f"_{operation}_kernel")
    unspecialised = {parameter.name for parameter in kernel.params if parameter.do_not_specialize}
    assert unspecialised == CHANGING.get(operation, set()), unspecialised
    names = list(kernel.arg_names)
    signature = {name: "constexpr" if name in constants else argument_type(name, dtype) for name in names}
    fixed = {(names.index(name),): value for name, value in constants.items()}
    compiled = compile_kernel(ASTSource(kernel, signature, fixed), target=GPUTarget("cuda", 90, 32))
    assert compiled.asm["ptx"]


if __name__ == "__main__":
    for operation, constants in CONSTANTS:
        compile_for(operation, constants, sys.argv[1])
