"""Products with rounded weights: every instruction set gives the definition's bits."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional

from millrace_kernels.device_kernels import select_kernels
from millrace_kernels.exchange.group import Alone
from millrace_kernels.linear.format import Format
from millrace_kernels.linear.reference import quantized_linear_reference
from millrace_kernels.linear.rounding import Rounded, pad_inputs, round_inputs, round_int4, round_int8
from millrace_kernels.native.abi import Library
from millrace_kernels.native.errors import RecordError
from millrace_kernels.native.recording.recorder import record
from millrace_kernels.native.weights.packing import NativePacker
from millrace_kernels.tensor_packer import TensorPacker
from millrace_kernels.tensor_step import TensorStep
from millrace_kernels.weights import Packer, SideBySide
from tests.kernels.libraries import READS_KERNELS

FORMATS = [Format.INT8, Format.INT4]
SHAPES = [(1, 10, 1), (5, 48, 37), (13, 2090, 70), (6, 576, 64)]
"""Rows, inputs, outputs."""
Rows = Any


def rounded(form: Format, weight: torch.Tensor) -> Rounded:
    return round_int8(weight) if form == Format.INT8 else round_int4(weight)


def tensor_step() -> TensorStep:
    """A step that only multiplies."""
    return TensorStep.without_tokens(select_kernels(torch.device("cpu")), Alone())


def with_outliers(rows: int, width: int) -> torch.Tensor:
    """Normal inputs of which every eleventh channel is 100 times as large."""
    x = torch.randn(rows, width)
    x[:, 3::11] *= 100
    return x


def relative_error(mine: torch.Tensor, expected: torch.Tensor) -> float:
    return float((mine - expected).norm() / expected.norm())


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_has_the_definitions_bits(
    library: Library, native_rows: Rows, shape: tuple[int, int, int], form: Format
) -> None:
    rows, inputs, outputs = shape
    x, weight, bias = with_outliers(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    matrix = NativePacker(torch.float32, form).pack([weight], outputs, inputs, bias)
    found = native_rows(library).run(lambda step, x: step.linear(x, matrix), x)
    assert torch.equal(found, quantized_linear_reference(x, rounded(form, weight), bias))


@pytest.mark.parametrize("form", FORMATS)
def test_no_sum_of_the_largest_numbers_overflows(library: Library, native_rows: Rows, form: Format) -> None:
    x, weight = torch.ones(5, 64), torch.full((33, 64), 127.0 if form == Format.INT8 else 7.0)
    weight[:, ::32] *= -8 / 7 if form == Format.INT4 else 1
    x[1:3] *= -1
    weight[16:] *= -1
    matrix = NativePacker(torch.float32, form).pack([weight], 33, 64, None)
    found = native_rows(library).run(lambda step, x: step.linear(x, matrix), x)
    assert torch.equal(found, quantized_linear_reference(x, rounded(form, weight), None))


@pytest.mark.parametrize("form", FORMATS)
def test_parts_sums_and_bfloat16_have_the_definitions_bits(
    library: Library, native_rows: Rows, form: Format
) -> None:
    x, weight = torch.randn(9, 48), torch.randn(48, 48)
    matrix = NativePacker(torch.bfloat16, form).pack(weight.split([5, 30, 13]), 48, 48, None)
    once = quantized_linear_reference(x, rounded(form, weight), None).bfloat16()
    rows = native_rows(library, torch.bfloat16)
    assert torch.equal(rows.run(lambda step, x: step.linear(x, matrix), x), once)
    twice = quantized_linear_reference(once, rounded(form, weight), None)
    found = rows.run(lambda step, x: step.linear_add(step.linear(x, matrix), matrix, x), x)
    assert torch.equal(found, twice + x)


def test_parts_in_different_formats_are_one_product(library: Library, native_rows: Rows) -> None:
    x, weights = torch.randn(9, 48), [torch.randn(rows, 48) for rows in (21, 5, 22)]
    biases = [torch.randn(21), None, torch.randn(22)]
    formats = (Format.INT4, Format.DENSE, Format.INT8)

    def side_by_side(packer: Callable[[Format], Packer]) -> SideBySide:
        parts = zip(formats, weights, biases, strict=True)
        return SideBySide(tuple(packer(f).pack([part], len(part), 48, bias) for f, part, bias in parts))

    native = side_by_side(lambda form: NativePacker(torch.float32, form))
    torchs = side_by_side(lambda form: TensorPacker(torch.float32, torch.device("cpu"), form))
    expected = tensor_step().linear(x, torchs)
    found = native_rows(library).run(lambda step, x: step.linear(x, native), x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    whole = [*range(21), *range(26, 48)]
    assert torch.equal(found[:, whole], expected[:, whole])
    twice = native_rows(library).run(lambda step, x: step.linear_add(step.linear(x, native), native, x), x)
    torch.testing.assert_close(twice, x + tensor_step().linear(found, torchs), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("form", FORMATS)
def test_logits_in_parts_are_those_of_the_whole(form: Format) -> None:
    packer = TensorPacker(torch.bfloat16, torch.device("cpu"), form)
    x, weight = torch.randn(3, 64).bfloat16(), torch.randn(32, 64).bfloat16()
    parts = SideBySide(tuple(packer.pack([part], 16, 64, None) for part in weight.split(16)))
    whole = packer.pack([weight], 32, 64, None)
    assert torch.equal(tensor_step().logits(x, parts), tensor_step().logits(x, whole))
    assert torch.equal(tensor_step().linear(x, parts), tensor_step().linear(x, whole))


def test_a_table_in_parts_is_refused() -> None:
    for packer in (NativePacker(torch.float32), TensorPacker(torch.float32, torch.device("cpu"))):
        table = SideBySide(tuple(packer.pack_table(torch.eye(32)) for _ in "ab"))
        with pytest.raises(RecordError, match="an embedding is one matrix"):
            record(lambda step, table=table: step.embed(table), lambda x, _: x, torch.float32)
        with pytest.raises(TypeError, match="an embedding is one matrix"):
            tensor_step().embed(table)


def test_a_gate_in_another_format_is_refused() -> None:
    packers = (NativePacker(torch.float32, form) for form in FORMATS)
    pair = SideBySide(tuple(packer.pack([torch.eye(32)], 32, 32, None) for packer in packers))
    with pytest.raises(RecordError, match="one format"):
        record(lambda step: step.linear_silu_mul(torch.empty(1, 32), pair), lambda x, _: x, torch.float32)


GATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "linear_silu_mul": functional.silu,
    "linear_gelu_mul": partial(functional.gelu, approximate="tanh"),
}


@pytest.mark.parametrize("operation", GATES)
@pytest.mark.parametrize("form", FORMATS)
def test_a_gated_product_is_close_to_its_definition(
    library: Library, native_rows: Rows, form: Format, operation: str
) -> None:
    x, gate, up = torch.randn(7, 64), torch.randn(40, 64), torch.randn(40, 64)
    matrix = NativePacker(torch.float32, form).pack_gated([gate, up], 80, 64, torch.ones(80))
    found = native_rows(library).run(lambda step, x: getattr(step, operation)(x, matrix), x)
    parts = [quantized_linear_reference(x, rounded(form, part), torch.ones(40)) for part in (gate, up)]
    torch.testing.assert_close(found, GATES[operation](parts[0]) * parts[1], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("form", FORMATS)
def test_a_row_has_the_same_bits_alone_in_a_crowd_and_on_any_threads(
    library: Library, native_rows: Rows, form: Format
) -> None:
    x, weight = torch.randn(23, 96), torch.randn(150, 96)
    matrix = NativePacker(torch.bfloat16, form).pack([weight], 150, 96, None)

    def forward(step: Any, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = step.linear(x, matrix)
        return result

    crowd = native_rows(library, torch.bfloat16).run(forward, x)
    assert torch.equal(native_rows(library, torch.bfloat16, threads=1).run(forward, x), crowd)
    for row in (0, 6, 22):
        assert torch.equal(native_rows(library, torch.bfloat16).run(forward, x[row : row + 1])[0], crowd[row])


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("fault", [float("nan"), float("inf")])
def test_a_row_that_holds_no_number_spoils_no_other_and_itself_wholly(
    library: Library, native_rows: Rows, form: Format, fault: float
) -> None:
    x, weight = torch.randn(9, 96), torch.randn(50, 96)
    matrix = NativePacker(torch.float32, form).pack([weight], 50, 96, None)
    clean = native_rows(library).run(lambda step, x: step.linear(x, matrix), x)
    x[4, 40] = fault
    found = native_rows(library).run(lambda step, x: step.linear(x, matrix), x)
    assert found[4].isnan().all()
    others = [row for row in range(9) if row != 4]
    assert torch.equal(found[others], clean[others])


def test_an_embedding_is_a_row_of_the_rounded_table(library: Library, native_rows: Rows) -> None:
    rows = torch.randn(9, 50)
    table = NativePacker(torch.float32, Format.INT8).pack_table(rows)
    found = native_rows(library).run(lambda step, _: step.embed(table), rows)
    expected = round_int8(rows)
    assert torch.equal(found, (expected.values * expected.scales[:, None])[:, :50])


def test_one_input_is_rounded_once_for_all_products() -> None:
    packer = NativePacker(torch.float32, Format.INT4)
    table, weight = packer.pack_table(torch.randn(4, 64)), packer.pack([torch.randn(64, 64)], 64, 64, None)

    def forward(step: Any) -> torch.Tensor:
        x = step.embed(table)
        normal = step.rms_norm(x, torch.ones(64), 1e-5)
        x = step.linear_add(step.linear(normal, weight), weight, x)
        result: torch.Tensor = step.linear_add(step.linear(normal, weight), weight, x)
        return result

    names = [one.kind.name for one in record(forward, lambda hidden, _: hidden, torch.float32).operations]
    assert names.count("QUANTIZE") == 3


def test_an_embedding_in_int4_is_refused() -> None:
    weight = NativePacker(torch.float32, Format.INT4).pack([torch.randn(4, 64)], 4, 64, None)
    with pytest.raises(RecordError, match="pack it as a table"):
        record(lambda step: step.embed(weight), lambda hidden, _: hidden, torch.float32)


@pytest.mark.parametrize(("form", "bound"), [(Format.INT8, 0.015), (Format.INT4, 0.1)])
def test_the_definition_is_close_to_the_product_itself_with_outliers_too(form: Format, bound: float) -> None:
    weight = torch.randn(200, 1024)
    for x in (torch.randn(20, 1024), with_outliers(20, 1024)):
        assert (
            relative_error(quantized_linear_reference(x, rounded(form, weight), None), x @ weight.T) < bound
        )


@pytest.mark.parametrize("form", FORMATS)
def test_weights_that_are_whole_numbers_already_stay(form: Format) -> None:
    highest = 127 if form == Format.INT8 else 7
    weight = torch.randint(-highest, highest + 1, (6, 64)).float()
    weight[:, ::32] = -8 if form == Format.INT4 else 127
    matrix = rounded(form, weight)
    assert torch.equal(matrix.values.float(), weight)
    assert (matrix.scales == 1).all()


def test_inputs_are_rounded_to_the_nearest_of_255_levels() -> None:
    x = torch.cat([torch.randn(3, 64), torch.zeros(1, 64), torch.full((1, 64), 1e-35)])
    found = round_inputs(x)
    back = found.values.view(5, -1, 32) * found.scales[..., None]
    assert ((back.flatten(1) - x).abs() <= found.scales.repeat_interleave(32, 1) * 0.501 + 1e-30).all()
    assert pad_inputs(torch.ones(1, 33)).shape == (1, 64)


def test_rounded_matrices_take_the_memory_that_the_docs_say() -> None:
    sizes = {}
    for form in Format.OF_PACKERS:
        matrix = NativePacker(torch.bfloat16, form).pack([torch.randn(256, 1024)], 256, 1024, None)
        sizes[form] = matrix.data.nbytes
    assert sizes[Format.INT8] == sizes[Format.DENSE] / 2
    assert sizes[Format.INT4] == sizes[Format.DENSE] * 4.5 / 16


PEAK = """
import resource, sys, torch
from millrace_kernels.native.weights.packing import NativePacker
from millrace_kernels.linear.format import Format
torch.set_num_threads(1)
packer = NativePacker(torch.bfloat16, getattr(Format, sys.argv[1]))
packer.pack([torch.ones(64, 512)], 64, 512, None)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
parts = (torch.ones(4096, 4096, dtype=torch.bfloat16) for _ in range(4))
matrix = packer.pack(parts, 4 * 4096, 4096, None)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, matrix.data.nbytes / 2**20)
"""


@READS_KERNELS
@pytest.mark.parametrize("form", FORMATS)
def test_packing_needs_no_more_than_what_is_packed_and_one_tensor(form: Format) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PEAK, form.number.name], check=True, capture_output=True, text=True
    )
    grown, packed = map(float, done.stdout.split())
    assert grown < packed + 32 + 24  # MiB: one part, and what rounding some rows takes


def test_logits_are_never_rounded_to_bfloat16() -> None:
    """They tie at the maximum in 3 to 7 % of random rows otherwise."""
    x, weight = torch.randn(3, 64).bfloat16(), torch.randn(1030, 64).bfloat16()
    bias = torch.randn(1030).bfloat16()
    head = TensorPacker(torch.bfloat16, torch.device("cpu")).pack([weight], 1030, 64, bias)
    logits = tensor_step().logits(x, head)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, torch.nn.functional.linear(x.float(), weight.float(), bias.float()))
    assert torch.equal(tensor_step().logits(x[:1], head), logits[:1])
