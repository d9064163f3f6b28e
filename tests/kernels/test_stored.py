"""Products with a checkpoint's own numbers: INT4 has the definition's bits, FP8 widens exactly."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from millrace_kernels.linear.format import Format, Number
from millrace_kernels.linear.reference import fp8_linear_reference, quantized_linear_reference
from millrace_kernels.linear.rounding import keep_rounded
from millrace_kernels.linear.stored import StoredMatrix
from millrace_kernels.native.abi import Library
from millrace_kernels.native.errors import RecordError
from millrace_kernels.native.recording.recorder import Recorder, record
from millrace_kernels.native.weights.packing import NativePacker
from tests.kernels.libraries import READS_KERNELS

Rows = Any
SHAPES = [(1, 10, 1), (13, 2090, 70), (6, 576, 64), (49, 130, 33)]
"""Rows, inputs, outputs."""
INT4 = [
    Format(Number.INT4, group, has_zeros)
    for group, has_zeros in ((32, False), (64, True), (128, False), (128, True), (None, True), (384, False))
]
FP8 = [Format(Number.FP8, group) for group in (None, 16, 128, 512)]


def make(form: Format, outputs: int, inputs: int) -> StoredMatrix:
    """Return any numbers, and scales among which are 0, the smallest and negative ones."""
    groups, number = 1 if form.group is None else -(-inputs // form.group), form.number
    scales = torch.rand(outputs, groups) - 0.3
    scales[::5, ::2], scales[3::5, ::2] = 0, 1e-44
    if number is Number.FP8:
        numbers = torch.randint(0, 256, (outputs, inputs), dtype=torch.uint8)
        numbers[numbers & 0x7F == 0x7F] = 1
        return StoredMatrix(number, numbers.view(torch.float8_e4m3fn), scales, form.group)
    zeros = torch.randint(-8, 9, (outputs, groups), dtype=torch.int8) if form.has_zeros else None
    values = torch.randint(-8, 8, (outputs, inputs), dtype=torch.int8)
    return StoredMatrix(number, values, scales, form.group, zeros)


def pack(weight: StoredMatrix, dtype: torch.dtype, bias: Tensor | None = None) -> Any:
    """Return it packed in two parts."""
    cut = len(weight) // 3
    return NativePacker(dtype).pack([weight[:cut], weight[cut:]], *weight.values.shape, bias, weight.form)


def multiply_rounded(x: Tensor, weight: StoredMatrix, bias: Tensor | None = None) -> Tensor:
    """Return the definition of a product with integers."""
    ordered = x if weight.order is None else x[:, weight.order]
    is_row = weight.number is Number.INT4 and weight.group is None
    kept = keep_rounded(weight.with_group(32) if is_row else weight)
    return quantized_linear_reference(ordered, kept, bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", INT4)
def test_int4_of_a_checkpoint_has_the_definitions_bits(
    library: Library, native_rows: Rows, form: Format, dtype: torch.dtype
) -> None:
    for rows, inputs, outputs in SHAPES:
        x, bias, weight = torch.randn(rows, inputs), torch.randn(outputs), make(form, outputs, inputs)
        matrix = pack(weight, dtype, bias)
        found = native_rows(library, dtype).run(lambda step, x, matrix=matrix: step.linear_sum(x, matrix), x)
        assert torch.equal(found, multiply_rounded(x, weight, bias))


@pytest.mark.parametrize("form", [INT4[1], Format.INT8])
def test_inputs_in_another_order(library: Library, native_rows: Rows, form: Format) -> None:
    """As GPTQ's desc_act has them. One input is rounded once for each order."""
    x, weight = torch.randn(7, 150), make(form, 150, 150)
    weights = [replace(weight, order=torch.randperm(150)) for _ in "ab"]
    matrices = [pack(one, torch.float32) for one in (*weights, weights[0], weight)]

    def add(step: Recorder, x: Tensor) -> Tensor:
        products = [step.linear_sum(x, matrix) for matrix in matrices]
        quantize = sum(one.kind.name == "QUANTIZE" for one in step.operations)
        assert quantize == 3
        return step.add(products[3], step.add(products[2], step.add(products[1], products[0])))

    parts = [multiply_rounded(x, one) for one in (*weights, weights[0], weight)]
    assert torch.equal(native_rows(library).run(add, x), parts[0] + parts[1] + parts[2] + parts[3])


def run_norm(step: Any, x: Tensor, matrix: Any, dtype: torch.dtype) -> Tensor:
    """Multiply rows in the model's type: the residuals themselves are float32."""
    if dtype == torch.bfloat16:
        x = step.rms_norm(x, torch.ones(x.shape[1], dtype=dtype), 1e-5)
    result: Tensor = step.linear_sum(x, matrix)
    return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", FP8)
def test_fp8_agrees_with_its_definition(
    library: Library, native_rows: Rows, form: Format, dtype: torch.dtype
) -> None:
    """The bound: each of a sum's products and sums is rounded once."""
    native = native_rows(library, dtype)
    for rows, inputs, outputs in SHAPES:
        x, bias, weight = torch.randn(rows, inputs), torch.randn(outputs), make(form, outputs, inputs)
        matrix, ones = pack(weight, dtype, bias), torch.ones(inputs, dtype=dtype)
        found = native.run(lambda step, x, matrix=matrix: run_norm(step, x, matrix, dtype), x)
        alone = native.run(lambda step, x, matrix=matrix: run_norm(step, x, matrix, dtype), x[-1:])
        assert torch.equal(alone[0], found[-1])
        if dtype == torch.bfloat16:
            x = native.run(lambda step, x, ones=ones: step.rms_norm(x, ones, 1e-5), x).float()
        bound = (inputs + 4) * 2.0**-23 * (x.abs() @ weight.widen().abs().T + bias.abs())
        assert ((found - fp8_linear_reference(x, weight, bias)).abs() <= bound).all()


@pytest.mark.parametrize("group", [None, 32])
def test_every_8_bit_float_is_widened_exactly(library: Library, native_rows: Rows, group: int | None) -> None:
    """Subnormal ones too. A NaN spoils its output, and no other."""
    numbers = torch.arange(256, dtype=torch.uint8).repeat(18, 1).view(torch.float8_e4m3fn).clone()
    clean = numbers.view(torch.uint8)[1:]
    clean[clean & 0x7F == 0x7F] = 0
    scales = torch.rand(18, 1 if group is None else 256 // group)
    weight = StoredMatrix(Number.FP8, numbers, scales, group)
    matrix, x = pack(weight, torch.float32), torch.eye(256)
    found = native_rows(library).run(lambda step, x: step.linear(x, matrix), x)
    assert found[:, 0].isnan().all()
    assert torch.equal(found[:, 1:], weight.widen().T[:, 1:])
    alone = native_rows(library).run(lambda step, x: step.linear(x, matrix), x[3:4])
    assert torch.equal(alone[:, 1:], found[3:4, 1:])


STORED = [Format(Number.INT4, 64, has_zeros=True), Format(Number.FP8), Format(Number.FP8, 32)]


def multiply_stored(x: Tensor, weight: StoredMatrix) -> Tensor:
    """Return the definition of a product."""
    multiply = fp8_linear_reference if weight.number is Number.FP8 else multiply_rounded
    return multiply(x, weight, None)


@pytest.mark.parametrize("form", STORED)
def test_gates_and_threads(library: Library, native_rows: Rows, form: Format) -> None:
    x, parts = torch.randn(23, 96), [make(form, 40, 96) for _ in "gu"]
    matrix = NativePacker(torch.float32).pack_gated(parts, 80, 96, None, form)
    found = [
        native_rows(library, threads=threads).run(lambda step, x: step.linear_silu_mul(x, matrix), x)
        for threads in (1, 3)
    ]
    assert torch.equal(*found)
    gate, up = (multiply_stored(x, part) for part in parts)
    torch.testing.assert_close(found[0], functional.silu(gate) * up, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("form", STORED)
@pytest.mark.parametrize("fault", [float("nan"), float("inf")])
def test_a_row_that_holds_no_number_spoils_no_other(
    library: Library, native_rows: Rows, form: Format, fault: float
) -> None:
    x, weight = torch.randn(9, 96), make(form, 50, 96)
    weight.values.view(torch.int8)[:, 40] = 3
    matrix = pack(weight, torch.float32)
    clean = native_rows(library).run(lambda step, x: step.linear(x, matrix), x)
    x[4, 40] = fault
    found = native_rows(library).run(lambda step, x: step.linear(x, matrix), x)
    assert not found[4].isfinite().any()
    others = [row for row in range(9) if row != 4]
    assert torch.equal(found[others], clean[others])


Wrong = Callable[[NativePacker], object]
ORDERED = replace(make(INT4[0], 8, 64), order=torch.arange(64))
FLOATS = make(STORED[2], 8, 64)


def pack_two(packer: NativePacker, first: StoredMatrix, second: StoredMatrix) -> object:
    return packer.pack_gated([first, second], 16, 64, None, first.form)


def pack_one(packer: NativePacker, part: StoredMatrix) -> Any:
    return packer.pack([part], 8, 64, None, part.form)


def pack_none(packer: NativePacker, form: Format, inputs: int = 64) -> object:
    return packer.pack([], 8, inputs, None, form)


WRONG: dict[str, tuple[Wrong, str]] = {
    "a group of no product": (
        lambda packer: pack_none(packer, Format(Number.INT4, 48)),
        "INT4 in groups of 48 has no native product: .* INT4 in groups of 32, 64 or 128",
    ),
    "INT8 in groups": (lambda packer: pack_none(packer, Format(Number.INT8, 32)), "INT8 in groups of 32 has"),
    "FP8 with zero points": (
        lambda packer: pack_none(packer, Format(Number.FP8, has_zeros=True)),
        "FP8 with zero points has no native product",
    ),
    "a gate in another format": (
        lambda packer: pack_two(packer, FLOATS, ORDERED),
        "a part in INT4 in groups of 32 of a matrix in FP8 in groups of 32",
    ),
    "a gate in another order": (
        lambda packer: pack_two(packer, ORDERED, replace(ORDERED, order=torch.arange(64).flip(0))),
        r"different orders of inputs \(desc_act\)",
    ),
    "a gate in no order": (
        lambda packer: pack_two(packer, ORDERED, replace(ORDERED, order=None)),
        "different orders",
    ),
    "an input twice": (
        lambda packer: pack_one(packer, replace(ORDERED, order=torch.zeros(64).long())),
        "that is no order of 64 inputs",
    ),
    "FP8 in an order": (
        lambda packer: pack_one(packer, replace(FLOATS, order=torch.arange(64))),
        "only integers may have one",
    ),
    "odd inputs": (
        lambda packer: pack_none(packer, FLOATS.form, 33),
        "33 inputs in bfloat16, but native products read pairs",
    ),
    "an embedding": (
        lambda packer: record(
            lambda step: step.embed(pack_one(packer, FLOATS)), lambda x, _: x, packer.dtype
        ),
        "an embedding in FP8 in groups of 32 has no kernel: pack it as a table",
    ),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_what_has_no_product_is_refused(name: str) -> None:
    wrong, text = WRONG[name]
    with pytest.raises(RecordError, match=text):
        wrong(NativePacker(torch.bfloat16))


def test_packed_matrices_take_the_memory_that_the_docs_say() -> None:
    bits = {
        Format(Number.INT4, 32): 5,
        Format(Number.INT4, 32, has_zeros=True): 5.25,
        Format(Number.INT4, 128): 4.25,
        Format(Number.INT4, 128, has_zeros=True): 4.3125,
        Format(Number.FP8): 8,
        Format(Number.FP8, 128): 8.25,
    }
    for form, expected in bits.items():
        matrix = pack(make(form, 64, 1024), torch.bfloat16)
        assert matrix.data.nbytes * 8 == expected * 64 * 1024, form


PEAK = """
import resource, sys, torch
from millrace_kernels.linear.format import Number
from millrace_kernels.linear.stored import StoredMatrix
from millrace_kernels.native.weights.packing import NativePacker
torch.set_num_threads(1)
number, dtype = (Number.FP8, torch.float8_e4m3fn) if sys.argv[1] == "FP8" else (Number.INT4, torch.int8)
def make(rows):
    values = torch.ones(rows, 4096, dtype=torch.int8).view(dtype)
    zeros = torch.ones(rows, 32, dtype=torch.int8) if number is Number.INT4 else None
    return StoredMatrix(number, values, torch.ones(rows, 32), 128, zeros)
packer = NativePacker(torch.bfloat16)
packer.pack([make(64)], 64, 4096, None, make(1).form)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
matrix = packer.pack((make(4096) for _ in range(4)), 4 * 4096, 4096, None, make(1).form)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, matrix.data.nbytes / 2**20)
"""


@READS_KERNELS
@pytest.mark.parametrize("number", ["INT4", "FP8"])
def test_packing_needs_no_more_than_what_is_packed_and_one_part(number: str) -> None:
    done = subprocess.run([sys.executable, "-c", PEAK, number], check=True, capture_output=True, text=True)
    grown, packed = map(float, done.stdout.split())
    assert grown < packed + 16 + 24  # MiB: one part, and what packing some rows takes
