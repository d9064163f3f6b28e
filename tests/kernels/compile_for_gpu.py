"""`compile_for_gpu.py TYPE CAPABILITY`: compile every Triton kernel for Ampere (80), Hopper (90) or Blackwell
(100), or those with 8-bit floats for Ada (89).

No GPU is needed. Run without TRITON_INTERPRET.
"""

import importlib
import sys
from typing import Any, NamedTuple

import torch
from triton import compile as compile_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from millrace_kernels.experts.triton_kernel import choose_tile
from millrace_kernels.experts.triton_quantized import choose_tile as choose_quantized_tile
from millrace_kernels.experts.triton_route import CHUNK as ENTRIES
from millrace_kernels.linear.format import Format, Number
from millrace_kernels.linear.gpu.choice import FP8_CAPABILITY
from millrace_kernels.linear.gpu.matrix import unit_of
from millrace_kernels.linear.gpu.triton_widened import TYPES as DOTS
from millrace_kernels.linear.gpu.triton_widened import choose_tile as choose_linear_tile
from millrace_kernels.linear.gpu.triton_widened import choose_unit
from millrace_kernels.paged_attention.cache import LARGEST, SMALLEST, KvFormat
from millrace_kernels.paged_attention.split_kv import KEYS_UNIT, LEAST_KEYS, MOST_SPANS
from millrace_kernels.paged_attention.tiles import Tile, choose_decode_tile, choose_prefill_tile
from millrace_kernels.paged_attention.triton_decode import MERGE_WARPS, SPANS_AT_ONCE
from millrace_kernels.sampling.gpu.triton_shape import SHAPE
from millrace_kernels.silu_mul.reference import GELU_CUBE, GELU_FACTOR

TARGETS = [GPUTarget("cuda", capability, 32) for capability in (80, 90, 100)]
ADA = GPUTarget("cuda", 89, 32)
"""Multiplies 8-bit floats, as Hopper, by Ampere's instructions: what reads such floats differs from both."""
SHARED_MEMORY = 99 << 10
"""What a kernel may take on the smallest of these processors, of compute capability 8.6."""
KV_HEADS = 2
SHAPES = ((64, 4), (128, 4), (256, 4), (128, 7))
"""Sizes of a head, and how many share a KV head."""
WIDEST = {"bf16": ((256, 64),), "fp32": ((128, 64),)}
"""Such, too. In float32 64 heads of 256 need 100 KiB, one more than the smallest processors have."""
WINDOWED = ((128, 4, 4096), (256, 4, 1000))
"""With a window of so many keys, too: prefill has one more loop over tiles."""
ROUNDED = {KvFormat.INT8: "*i8", KvFormat.FP8: "*fp8e4nv"}
"""The types of a rounded cache's numbers."""
ROUNDED_SHAPES = ((64, 4), (128, 8), (256, 4))
SPANS = {"LEAST_KEYS": LEAST_KEYS, "MOST_SPANS": MOST_SPANS, "KEYS_UNIT": KEYS_UNIT}
DECODE = {"KV_HEADS": KV_HEADS, "BLOCK_SIZE": 16, "DOT_IN_FLOAT32": False} | SPANS
PREFILL = {"BLOCK_SIZE": 16, "DOT_IN_FLOAT32": False}
TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
ROTARY = [
    {"HEADS": 8, "KV_HEADS": 2, "HALF": 64, "BLOCK_SIZE": 16, "BLOCK_HEADS": 8, "BLOCK": 64}
    | {"LARGEST": 0, "SMALLEST": SMALLEST}
    | {"HAS_NORMS": has_norms, "HAS_ANGLES": has_angles}
    for has_norms in (False, True)
    for has_angles in (False, True)
]


class Case(NamedTuple):
    """A kernel, and what its launcher gives it."""

    module: str
    name: str
    constants: dict[str, Any]
    changing: frozenset[str] = frozenset()
    """Arguments that differ from step to step: Triton must not compile it again for some of their values."""
    num_warps: int = 4
    num_stages: int = 3
    kv: KvFormat = KvFormat.MODEL

    def runs_on(self, target: GPUTarget) -> bool:
        """Float8 needs a compute capability of 8.9."""
        return self.kv is not KvFormat.FP8 or target.arch >= 89


def attention_cases(
    dtype: torch.dtype, head_dim: int, group: int, window: int = 0, kv: KvFormat = KvFormat.MODEL
) -> list[Case]:
    """With a window there are sinks, too, as in gpt-oss."""
    package, rows = "paged_attention", frozenset({"num_rows"})
    one, many = choose_decode_tile(dtype, head_dim, group), choose_prefill_tile(dtype, head_dim, group)
    has_sinks = {"HAS_SINKS": window > 0}
    common = {"HAS_SCALES": kv is not KvFormat.MODEL, "WINDOW": window} | has_sinks
    decode = DECODE | common | block_sizes(one, head_dim, group)
    prefill = PREFILL | common | block_sizes(many, head_dim, group) | {"BLOCK_Q": many.rows // group}
    merge = {"HEADS": 8, "HEAD_DIM": head_dim, "SPANS": SPANS_AT_ONCE, "BLOCK_D": one.head_dim} | has_sinks
    return [
        Case(f"{package}.triton_decode", "decode", decode, rows, one.warps, one.stages, kv),
        Case(f"{package}.triton_decode", "merge", merge, num_warps=MERGE_WARPS),
        Case(f"{package}.triton_prefill", "prefill", prefill, rows, many.warps, many.stages, kv),
    ]


def rounded_cases(dtype: torch.dtype, kv: KvFormat) -> list[Case]:
    write = ROTARY[-1] | {"LARGEST": LARGEST[kv]}
    return [
        *(case for shape in ROUNDED_SHAPES for case in attention_cases(dtype, *shape, 4096, kv)),
        Case("rotary_kv_write.triton_kernel", "rotary_kv_write", write, kv=kv),
    ]


def block_sizes(tile: Tile, head_dim: int, group: int) -> dict[str, int]:
    blocks = {"BLOCK_M": tile.rows, "BLOCK_N": tile.keys, "BLOCK_D": tile.head_dim}
    return {"GROUP": group, "HEAD_DIM": head_dim, **blocks}


def expert_cases(dtype: torch.dtype, block_rows: int) -> list[Case]:
    package, entries, tile = "experts", frozenset({"num_entries"}), choose_tile(dtype, block_rows)
    product = {"BLOCK_ROWS": block_rows, "BLOCK_COLUMNS": tile.columns, "BLOCK_INPUTS": tile.inputs}
    product |= {"INPUTS": 2048, "DOT_IN_FLOAT32": False}
    gated, plain = {"NUM_CHOSEN": 8, "WIDTH": 768}, {"OUTPUTS": 2048}
    route = {"NUM_EXPERTS": 60, "NUM_CHOSEN": 4, "IS_SOFTMAX": True, "IS_NORMALISED": True, "BLOCK": 64}
    sort = {"NUM_EXPERTS": 128, "BINS": 256, "BLOCK_ROWS": block_rows, "CHUNK": ENTRIES}
    shape = (tile.warps, tile.stages)
    return [
        Case(f"{package}.triton_route", "route", route, num_warps=1),
        Case(f"{package}.triton_route", "sort", sort, entries | {"num_blocks"}),
        *(
            case
            for more in ({"HAS_BIAS": False}, {"HAS_BIAS": True})
            for case in (
                Case(
                    f"{package}.triton_kernel",
                    "experts_silu_mul",
                    product | gated | more | {"IS_CLAMPED": more["HAS_BIAS"]},
                    entries,
                    *shape,
                ),
                Case(f"{package}.triton_kernel", "experts_multiply", product | plain | more, entries, *shape),
            )
        ),
        Case(f"{package}.triton_kernel", "experts_sum", {"NUM_CHOSEN": 8, "OUTPUTS": 2048, "BLOCK": 1024}),
    ]


QUANTISED = (
    Format(Number.INT4, 32, has_zeros=True), Format(Number.INT4, 128), Format(Number.FP8),
    Format(Number.FP8, 128), Format(Number.INT8),
)  # fmt: skip
FEW_ROWS_ALONE = (Format(Number.INT4), Format(Number.FP8, 32), Format(Number.INT8, 128, has_zeros=True))
"""Differ from those above in the loop over units, which is the same for more rows."""


def can_fp8(target: GPUTarget) -> bool:
    return bool(target.arch >= 10 * FP8_CAPABILITY[0] + FP8_CAPABILITY[1])


def linear_cases(
    dtype: torch.dtype, target: GPUTarget, form: Format, counts: tuple[int, ...] = (1, 64, 300)
) -> list[Case]:
    package, rows = "linear.gpu", frozenset({"num_rows"})
    has_fp8 = can_fp8(target)
    found = []
    for num_rows in counts:
        tile = choose_linear_tile(form, dtype, num_rows)
        unit = choose_unit(form, tile)
        constants = linear_constants(form, unit) | {"HAS_FP8": has_fp8, "DOT": DOTS[dtype]}
        added = {"HAS_BIAS": True, "HAS_RESIDUAL": True, "PARTS": 4 if num_rows == 1 else 1}
        blocks = {"BLOCK_ROWS": tile.rows, "BLOCK_COLUMNS": tile.columns}
        absent = {} if form.has_zeros else {"zeros_ptr": None}
        shape = (tile.warps, tile.stages)
        constants |= added | blocks | absent
        found.append(Case(f"{package}.triton_widened", "widened", constants, rows, *shape))
    constants = linear_constants(form, unit_of(form.group)) | {"HAS_FP8": has_fp8, "DOT": DOTS[dtype]}
    constants |= {"BLOCK_COLUMNS": 32} | ({} if form.has_zeros else {"zeros_ptr": None})
    found.append(Case(f"{package}.triton_widen", "widen", constants, frozenset({"begin", "end"})))
    return found


def linear_constants(form: Format, unit: int) -> dict[str, Any]:
    inputs, outputs, is_int4 = 2048, 4096, form.number is Number.INT4
    strides = (outputs * unit // 2, unit // 2) if is_int4 else (unit, inputs)
    names = ("NUMBER", "INPUTS", "OUTPUTS", "UNIT", "GROUP", "UNIT_STRIDE", "OUTPUT_STRIDE", "HAS_ZEROS")
    values = (form.number.value, inputs, outputs, unit, form.group or inputs, *strides, form.has_zeros)
    return dict(zip(names, values, strict=True))


ROUND = {"INPUTS": 4096, "SMALLEST": 1e-30, "BLOCK": 4096}
ADDED = {"HAS_BIAS": True, "HAS_RESIDUAL": True, "BLOCK": 1024}
ROUNDING_CASES = [
    Case("linear.gpu.triton_round", "round_inputs", ROUND | {"LARGEST": 127.0, "IS_INT8": True}),
    Case("linear.gpu.triton_round", "round_inputs", ROUND | {"LARGEST": 448.0, "IS_INT8": False}),
    Case("linear.gpu.triton_round", "scale_sums", ADDED | {"OUTPUT_STRIDE": 4096}, frozenset({"eighths"})),
    Case(
        "linear.gpu.triton_widened",
        "add_parts",
        ADDED | {"OUTPUTS": 4096, "PARTS": 4},
        frozenset({"num_rows"}),
    ),
]


def quantized_expert_cases(
    dtype: torch.dtype, target: GPUTarget, form: Format, block_rows: int
) -> list[Case]:
    module, entries = "experts.triton_quantized", frozenset({"num_entries"})
    columns, warps, stages = choose_quantized_tile(dtype, block_rows)
    constants = linear_constants(form, unit_of(form.group)) | {"BLOCK_ROWS": block_rows, "WIDTH": 768}
    constants |= {"HAS_FP8": can_fp8(target), "DOT": DOTS[dtype], "BLOCK_COLUMNS": columns}
    constants |= {} if form.has_zeros else {"zeros_ptr": None}
    constants["HAS_BIAS"] = form.has_zeros  # those with zeros have biases and clamped gates, too
    return [
        Case(
            module,
            "quantized_silu_mul",
            constants | {"NUM_CHOSEN": 8, "IS_CLAMPED": form.has_zeros},
            entries,
            warps,
            stages,
        ),
        Case(module, "quantized_multiply", constants, entries, warps, stages),
    ]


CHUNK = {"CHUNK": SHAPE.chunk, "CHUNKS": 32}
ROOM = {"ROOM": SHAPE.room}
SEARCHED = {"BLOCK": SHAPE.candidates, "TRIED": SHAPE.bounds}
SAMPLING_CASES = [
    Case("sampling.gpu.triton_penalties", "clear", {"BLOCK": SHAPE.chunk}),
    Case("sampling.gpu.triton_penalties", "mark", {"BLOCK": SHAPE.marked}),
    Case("sampling.gpu.triton_chunks", "peak", {"CHUNK": SHAPE.chunk}, num_warps=SHAPE.chunk_warps),
    Case("sampling.gpu.triton_chunks", "weigh", CHUNK, num_warps=SHAPE.chunk_warps),
    Case("sampling.gpu.triton_chunks", "gather", CHUNK | ROOM, num_warps=SHAPE.chunk_warps),
    Case("sampling.gpu.triton_narrow", "narrow", CHUNK | ROOM, frozenset({"count"}), SHAPE.chunk_warps),
    Case(
        "sampling.gpu.triton_logprobs",
        "rank_logprobs",
        {"CHUNK": SHAPE.chunk},
        frozenset({"number"}),
        SHAPE.chunk_warps,
    ),
    Case("sampling.gpu.triton_logprobs", "merge_logprobs", CHUNK, frozenset({"number"}), SHAPE.chunk_warps),
    Case("sampling.gpu.triton_draw", "draw", CHUNK | ROOM | SEARCHED, num_warps=SHAPE.draw_warps),
]

GATED = {"WIDTH": 1000, "BLOCK": 1024, "CUBE": GELU_CUBE}


def cases(dtype: str, target: GPUTarget) -> list[Case]:
    return [
        *(case for shape in SHAPES + WIDEST[dtype] for case in attention_cases(TYPES[dtype], *shape)),
        *(case for shape in WINDOWED for case in attention_cases(TYPES[dtype], *shape)),
        *(Case("rotary_kv_write.triton_kernel", "rotary_kv_write", constants) for constants in ROTARY),
        *(case for kv in ROUNDED for case in rounded_cases(TYPES[dtype], kv)),
        Case("rms_norm.triton_kernel", "rms_norm", {"WIDTH": 200, "BLOCK": 256}),
        *(
            Case("silu_mul.triton_kernel", "gate_mul", GATED | {"FACTOR": factor})
            for factor in (0.0, GELU_FACTOR)
        ),
        *(case for rows in (16, 64) for case in expert_cases(TYPES[dtype], rows)),
        *(case for form in QUANTISED for case in linear_cases(TYPES[dtype], target, form)),
        *(case for form in FEW_ROWS_ALONE for case in linear_cases(TYPES[dtype], target, form, (1,))),
        *(
            case
            for form in (QUANTISED[0], QUANTISED[3])
            for rows in (16, 64)
            for case in quantized_expert_cases(TYPES[dtype], target, form, rows)
        ),
        *ROUNDING_CASES,
        *SAMPLING_CASES,
    ]  # fmt: skip


def ada_cases(dtype: str) -> list[Case]:
    """What reads or writes 8-bit floats: all others compile for Ada as for Ampere."""
    write = ROTARY[-1] | {"LARGEST": LARGEST[KvFormat.FP8]}
    return [
        *linear_cases(TYPES[dtype], ADA, Format(Number.FP8), (1,)),
        *linear_cases(TYPES[dtype], ADA, Format(Number.FP8, 128), (300,)),
        Case("rotary_kv_write.triton_kernel", "rotary_kv_write", write, kv=KvFormat.FP8),
        attention_cases(TYPES[dtype], *ROUNDED_SHAPES[0], kv=KvFormat.FP8)[0],
    ]


NUMBERS = {"starts_ptr": "*i32", "contexts_ptr": "*i32", "ends_ptr": "*i32", "tables_ptr": "*i64",
           "owners_ptr": "*i32", "experts_ptr": "*i32", "entries_ptr": "*i32", "slots_ptr": "*i64",
           "positions_ptr": "*i64"}  # fmt: skip
SAMPLING = {"logits_ptr": "*fp32", "table_ptr": "*i64", "masks_ptr": "*i32",
            "marks_ptr": "*i32", "buckets_ptr": "*i32", "entries_ptr": "*i64", "fixed_ptr": "*i32",
            "top_ids_ptr": "*i32", "top_values_ptr": "*fp32", "peaks_ptr": "*fp32",
            "found_ptr": "*i64", "values_ptr": "*fp32", "ids_ptr": "*i32",
            "drawn_ptr": "*fp32", "tokens_ptr": "*i64", "sampled_ptr": "*i64", "known_ptr": "*i64",
            "rows_ptr": "*i64"}  # fmt: skip
FLOATS = {"scale": "fp32", "epsilon": "fp32", "table_ptr": "*fp32", "sums_ptr": "*fp32", "mixed_ptr": "*fp32",
          "scores_ptr": "*fp32", "weights_ptr": "*fp32", "factors_ptr": "*fp32"}  # fmt: skip


def argument_type(case: Case, name: str, dtype: str) -> str:
    if case.kv is not KvFormat.MODEL and name in {"kv_ptr", "scales_ptr"}:
        return ROUNDED[case.kv] if name == "kv_ptr" else "*bf16"
    package = case.module.partition(".")[0]
    known = SAMPLING if package == "sampling" else NUMBERS | FLOATS
    if package == "linear" or "NUMBER" in case.constants:
        known = known | linear_types(case)
    return known.get(name, f"*{dtype}" if name.endswith("_ptr") else "i32")


def linear_types(case: Case) -> dict[str, str]:
    is_fp8 = case.constants.get("NUMBER") == "fp8" or not case.constants.get("IS_INT8", True)
    floats = ("scales_ptr", "row_scales_ptr", "parts_ptr")
    types = {"codes_ptr": "*u8" if is_fp8 else "*i8", "zeros_ptr": "*i8", "sums_ptr": "*i32"}
    return types | dict.fromkeys(floats, "*fp32")


def compile_for(case: Case, dtype: str, target: GPUTarget) -> None:
    kernel = getattr(importlib.import_module(f"millrace_kernels.{case.module}"), f"_{case.name}_kernel")
    unspecialised = {parameter.name for parameter in kernel.params if parameter.do_not_specialize}
    assert unspecialised == case.changing, unspecialised
    names = list(kernel.arg_names)
    signature = {
        name: "constexpr" if name in case.constants else argument_type(case, name, dtype) for name in names
    }
    fixed = {(names.index(name),): value for name, value in case.constants.items()}
    # Memory and strides come in multiples of 16 on a GPU: so loads are wide, and copies are asynchronous.
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(names)
        if name.endswith("_ptr") or "stride" in name
    }
    source = ASTSource(kernel, signature, fixed, aligned)
    options = {"num_warps": case.num_warps, "num_stages": case.num_stages}
    options["enable_fp_fusion"] = False  # as every launch says
    compiled = compile_kernel(source, target=target, options=options)
    assert compiled.asm["ptx"]
    is_exact = case.module.startswith("sampling.") and case.module != "sampling.gpu.triton_logprobs"
    for inexact in ("fma.rn", "div.full", "div.approx") if is_exact else ():
        assert inexact not in compiled.asm["ptx"], f"{case.name} has {inexact}: it is not rounded once"
    assert compiled.metadata.shared <= SHARED_MEMORY, (case.name, compiled.metadata.shared)


if __name__ == "__main__":
    name, capability = sys.argv[1], int(sys.argv[2])
    for target in TARGETS:
        if target.arch == capability:
            for case in filter(lambda one: one.runs_on(target), cases(name, target)):
                compile_for(case, name, target)
    for case in ada_cases(name) if capability == ADA.arch else ():
        compile_for(case, name, ADA)
