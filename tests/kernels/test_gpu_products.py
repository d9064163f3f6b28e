"""Products with quantised matrices on GPUs: layouts, choices and kernels, all on CPUs."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.runtime.interpreter import GridExecutor

from millrace_kernels.device_kernels import select_triton
from millrace_kernels.exchange.group import Alone
from millrace_kernels.linear.format import Format, Number
from millrace_kernels.linear.gpu.choice import Capability, Product, choose_product
from millrace_kernels.linear.gpu.matrix import GpuMatrix, pack_for_gpu
from millrace_kernels.linear.gpu.product import _cut_outputs, choose, multiply_on_gpu
from millrace_kernels.linear.gpu.reference import (
    gpu_product_reference,
    round_inputs_reference,
    widen_reference,
)
from millrace_kernels.linear.gpu.triton_round import round_inputs
from millrace_kernels.linear.gpu.triton_widen import widen
from millrace_kernels.linear.stored import StoredMatrix
from millrace_kernels.tensor_packer import TensorPacker
from millrace_kernels.tensor_step import TensorStep
from millrace_kernels.weights import SideBySide
from testing.stored_matrices import Kind

BLOCK = 128
CPU, AMPERE, HOPPER = torch.device("cpu"), Capability(8, 0), Capability(9, 0)
FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16


KINDS = {
    "INT4 in groups of 32": Kind(Number.INT4, 32, has_zeros=True, has_order=True, inputs=88),
    "INT4 in groups of 96": Kind(Number.INT4, 96, inputs=200, outputs=37),
    "INT4 in groups of 128": Kind(Number.INT4, 128, has_zeros=True, inputs=640, outputs=33),
    "INT4 in groups of 256": Kind(Number.INT4, 256, inputs=512),
    "INT4, one group": Kind(Number.INT4, None, has_zeros=True, inputs=200, outputs=1),
    "FP8": Kind(Number.FP8, are_inputs_rounded=True),
    "FP8 of odd shape": Kind(Number.FP8, inputs=75, outputs=37),
    "FP8 in blocks": Kind(Number.FP8, BLOCK, inputs=200, outputs=96),
    "FP8 in one block": Kind(Number.FP8, BLOCK, inputs=96),
    "INT8": Kind(Number.INT8, are_inputs_rounded=True),
    "INT8 in groups": Kind(Number.INT8, 64, has_zeros=True, has_order=True, inputs=160),
}
ALL_KINDS = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def pack(stored: StoredMatrix, capability: Capability = HOPPER, bias: Tensor | None = None) -> GpuMatrix:
    """Pack two parts, one below the other."""
    at = len(stored) // 3
    parts = [part for part in (stored[:at], stored[at:]) if len(part)]
    return pack_for_gpu(parts, len(stored), bias, CPU, capability)


@ALL_KINDS
@pytest.mark.parametrize("capability", [AMPERE, HOPPER])
def test_packed_weights_are_those_of_the_checkpoint_bit_for_bit(kind: Kind, capability: Capability) -> None:
    stored = kind.make()
    matrix = pack(stored, capability)
    expected = stored.widen()
    expected = expected if stored.order is None else expected[:, stored.order]
    assert torch.equal(widen_reference(matrix), expected)
    assert torch.equal(widen(matrix, slice(0, kind.outputs), FLOAT32), expected)
    some = slice(kind.outputs // 2, kind.outputs)
    # The interpreter cuts bits off where a GPU rounds to bfloat16.
    torch.testing.assert_close(widen(matrix, some, BFLOAT16).float(), expected[some], rtol=2**-7, atol=0)


@ALL_KINDS
@pytest.mark.parametrize("capability", [AMPERE, HOPPER])
def test_a_product_is_its_definition(kind: Kind, capability: Capability) -> None:
    for rows, dtype in product((1, 17, 70), (FLOAT32, BFLOAT16)):
        bias = torch.randn(kind.outputs).to(dtype)
        matrix = pack(kind.make(), capability, bias)
        x, residual = torch.randn(rows, kind.inputs).to(dtype), torch.randn(rows, kind.outputs).to(dtype)
        chosen = choose(x, matrix)
        expected = gpu_product_reference(x, matrix, chosen)
        bound = bound_error(x, matrix, expected.abs() + bias.abs())
        assert (multiply_on_gpu(x, matrix).float() - expected).abs().sub(bound).max() <= 0
        added = multiply_on_gpu(x, matrix, residual.clone())
        assert added.dtype == dtype
        bound += bound_error(x, matrix, residual.abs())
        assert (added.float() - (expected + residual)).abs().sub(bound).max() <= 0


def bound_error(x: Tensor, matrix: GpuMatrix, sizes: Tensor) -> Tensor:
    """Return the most that float32 sums are off, and what rounds numbers of these sizes to x's type.

    The interpreter cuts bits off where a GPU rounds to bfloat16, and some products round three times.
    """
    products = matrix.arrange(x).abs().float() @ widen_reference(matrix).abs().t()
    rounding = 3 * 2**-7 if x.dtype == BFLOAT16 else 2**-22
    return products * (matrix.inputs * 2**-24 * (1 + 2**-3)) + rounding * sizes


@ALL_KINDS
def test_many_rows_widen_the_weights_once(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace_kernels.linear.gpu.choice.WIDENED_ROWS", 65)
    monkeypatch.setattr("millrace_kernels.linear.gpu.product.SLICE_BYTES", 45 * kind.inputs * 4)
    monkeypatch.setattr("millrace_kernels.linear.gpu.product.ALIGNMENT", 16)
    matrix, x = pack(kind.make(), bias=torch.randn(kind.outputs)), torch.randn(66, kind.inputs)
    assert choose(x, matrix) is Product.WIDENED
    expected = gpu_product_reference(x, matrix, Product.WIDENED)
    torch.testing.assert_close(multiply_on_gpu(x, matrix), expected, rtol=1e-5, atol=1e-5)
    residual = torch.randn(66, kind.outputs)
    found = multiply_on_gpu(x, matrix, residual.clone())
    torch.testing.assert_close(found, residual + expected, rtol=1e-5, atol=1e-5)


FP8, INT8, INT4 = Format(Number.FP8), Format(Number.INT8), Format(Number.INT4, 128)
IN_BLOCKS = Format(Number.FP8, BLOCK)


@pytest.mark.parametrize(
    ("form", "shape", "rows", "dtype", "capability", "product"),
    [
        (INT4, (4096, 4096), 64, BFLOAT16, HOPPER, Product.DIRECT),
        (INT4, (4096, 4096), 1024, BFLOAT16, HOPPER, Product.DIRECT),
        (INT4, (4096, 4096), 1025, BFLOAT16, HOPPER, Product.WIDENED),
        (FP8, (4096, 4096), 64, BFLOAT16, HOPPER, Product.DIRECT),
        (FP8, (4096, 4096), 65, BFLOAT16, HOPPER, Product.SCALED),
        (FP8, (4096, 4096), 65, BFLOAT16, (8, 9), Product.SCALED),
        (FP8, (4096, 4096), 65, BFLOAT16, AMPERE, Product.DIRECT),
        (FP8, (4096, 4096), 4096, BFLOAT16, AMPERE, Product.WIDENED),
        (FP8, (4096, 4096), 65, FLOAT32, HOPPER, Product.DIRECT),
        (FP8, (4104, 4096), 65, BFLOAT16, HOPPER, Product.DIRECT),
        (FP8, (4096, 4104), 65, BFLOAT16, HOPPER, Product.DIRECT),
        (IN_BLOCKS, (4096, 4096), 65, BFLOAT16, HOPPER, Product.DIRECT),
        (IN_BLOCKS, (4096, 4096), 1025, BFLOAT16, HOPPER, Product.WIDENED),
        (INT8, (4096, 4096), 64, BFLOAT16, AMPERE, Product.DIRECT),
        (INT8, (4096, 4096), 65, BFLOAT16, AMPERE, Product.INTEGERS),
        (INT8, (4100, 4096), 65, BFLOAT16, AMPERE, Product.DIRECT),
        (Format(Number.INT8, 128), (4096, 4096), 65, BFLOAT16, AMPERE, Product.DIRECT),
    ],
)
def test_the_choice_of_a_product(  # noqa: PLR0917
    form: Format,
    shape: tuple[int, int],
    rows: int,
    dtype: torch.dtype,
    capability: tuple[int, int],
    product: Product,
) -> None:
    chosen = choose_product(form, *shape, rows, dtype, Capability(*capability), may_round=True)
    assert chosen is product


def test_inputs_are_rounded_only_where_the_author_of_each_part_rounded_them() -> None:
    x = torch.zeros(65, 96).bfloat16()
    for kind, chosen in ((KINDS["FP8"], Product.SCALED), (KINDS["INT8"], Product.INTEGERS)):
        yes, no = kind.make(), kind._replace(are_inputs_rounded=False).make()
        packed = [pack_for_gpu(parts, 160, None, CPU, HOPPER) for parts in ((yes, yes), (yes, no), (no, yes))]
        assert [choose(x, one) for one in packed] == [chosen, Product.DIRECT, Product.DIRECT]


@pytest.mark.parametrize("inputs", [5120, 14336, 25600, 28672])
def test_slices_of_outputs_are_aligned_and_bounded(inputs: int) -> None:
    slices = list(_cut_outputs(28700, inputs * 2))
    assert all(one.start % 128 == 0 and (one.stop - one.start) * inputs * 2 <= 128 << 20 for one in slices)
    assert [one.start for one in slices] == [0, *(one.stop for one in slices[:-1])]
    assert slices[-1].stop == 28700


def test_sums_of_integers_are_kept_some_outputs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = pack(KINDS["INT8"].make(), bias=torch.randn(80).bfloat16())
    x, residual = torch.randn(67, 96).bfloat16(), torch.randn(67, 80).bfloat16()
    whole, added = multiply_on_gpu(x, matrix), multiply_on_gpu(x, matrix, residual.clone())
    monkeypatch.setattr("millrace_kernels.linear.gpu.product.SLICE_BYTES", 35 * 67 * 4)
    monkeypatch.setattr("millrace_kernels.linear.gpu.product.ALIGNMENT", 16)
    assert torch.equal(multiply_on_gpu(x, matrix), whole)
    assert torch.equal(multiply_on_gpu(x, matrix, residual), added)


def test_every_code_of_8_bits_is_widened_exactly_where_the_device_has_no_such_floats() -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn).view(16, 16)
    matrix = pack(StoredMatrix(Number.FP8, codes, torch.ones(16, 1)), AMPERE)
    found = widen(matrix, slice(0, 16), FLOAT32)
    torch.testing.assert_close(found, codes.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_inputs_are_rounded_by_their_definition(dtype: torch.dtype) -> None:
    x = torch.randn(6, 300).bfloat16()
    x[1], x[2, 3], x[3, 200] = 0, float("nan"), float("-inf")
    x[4] *= torch.logspace(-8, 0, 300)  # into the smallest of 8-bit floats
    found, expected = round_inputs(x, dtype), round_inputs_reference(x, dtype)
    assert torch.equal(found.codes.view(torch.uint8), expected.codes.view(torch.uint8))
    torch.testing.assert_close(found.scales, expected.scales, rtol=0, atol=0, equal_nan=True)


@ALL_KINDS
def test_a_row_of_few_has_the_same_bits_alone_and_spoils_no_other(kind: Kind) -> None:
    matrix, lines = pack(kind.make()), torch.full((9, kind.inputs + 7), float("nan")).bfloat16()
    x = lines[:, : kind.inputs].copy_(torch.randn(9, kind.inputs))
    x[4, 40] = float("nan")
    found = multiply_on_gpu(x, matrix)
    assert found[4].isnan().all()
    for row in (0, 3, 8):
        assert torch.equal(multiply_on_gpu(x[row : row + 1], matrix)[0], found[row])
        assert found[row].isfinite().all()


@pytest.mark.parametrize("name", ["FP8", "INT8"])
def test_a_row_without_numbers_spoils_no_other_of_many(name: str) -> None:
    matrix, x = pack(KINDS[name].make()), torch.randn(70, KINDS[name].inputs).bfloat16()
    x[4, 40] = float("inf")
    found = multiply_on_gpu(x, matrix)
    assert found[4].isnan().all()
    assert found[torch.arange(70) != 4].isfinite().all()


def test_inputs_divided_among_programs_give_the_same_product_each_time() -> None:
    kind = Kind(Number.INT4, 128, has_zeros=True, inputs=4096, outputs=40)
    matrix, x = pack(kind.make(), bias=torch.randn(40)), torch.randn(3, 4096)
    found = multiply_on_gpu(x, matrix)
    expected = gpu_product_reference(x.double(), matrix, Product.DIRECT)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    assert torch.equal(multiply_on_gpu(x, matrix), found)


def test_groups_that_no_product_has_are_refused() -> None:
    with pytest.raises(
        ValueError, match="groups of 40 inputs have no product on GPUs: multiples of 32 have one"
    ):
        pack(Kind(Number.INT4, 40).make())


def step() -> TensorStep:
    return TensorStep.without_tokens(select_triton(), Alone())


def test_matrices_of_several_formats_side_by_side() -> None:
    packer = TensorPacker(BFLOAT16, CPU, capability=HOPPER)
    stored = [KINDS["FP8"].make(), Kind(Number.INT4, 32, outputs=16).make()]
    dense = torch.randn(24, 96).bfloat16() / 8
    parts = [packer.pack([one], len(one), 96, None, one.form) for one in stored]
    matrix = SideBySide((*parts, packer.pack([dense], 24, 96, None)))
    x, residual = torch.randn(5, 96).bfloat16(), torch.randn(5, 120).bfloat16()
    expected = x.float() @ torch.cat([*(one.widen() for one in stored), dense.float()]).T
    assert step().linear(x, matrix).dtype == BFLOAT16
    torch.testing.assert_close(step().linear(x, matrix).float(), expected, rtol=1e-2, atol=1e-2)
    added = step().linear_add(x, matrix, residual.clone()).float()
    torch.testing.assert_close(added, expected + residual, rtol=2e-2, atol=2e-2)
    logits = step().logits(x, SideBySide(tuple(parts)))
    torch.testing.assert_close(logits, expected[:, :96], rtol=1e-5, atol=1e-5)


def test_what_a_packed_matrix_takes() -> None:
    """README.md has these sums."""
    sizes = {
        Kind(Number.FP8, inputs=256): 80 * 256 + 80 * 4,
        Kind(Number.FP8, BLOCK, inputs=200): 80 * 200 + 80 * 2 * 4,
        Kind(Number.INT8, inputs=75): 80 * 75 + 80 * 4,
        Kind(Number.INT4, 128, inputs=256): 80 * 128 + 80 * 2 * 4,
        Kind(Number.INT4, 32, has_zeros=True, has_order=True, inputs=88): 80 * 48 + 80 * 3 * 5 + 88 * 8,
    }
    assert {kind: pack(kind.make()).nbytes for kind in sizes} == sizes


Launches = list[tuple[str, tuple[tuple[str, object], ...]]]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launches]:
    """Tensors on a GPU, without numbers: a call that needs one raises, and torch checks its arguments.

    The launches are kept with their kernels' constants.
    """
    kept: Launches = []

    def launch(executor: GridExecutor, *args: object, **kwargs: object) -> None:
        types = tuple((str(at), getattr(arg, "dtype", None)) for at, arg in enumerate(args))
        kept.append((executor.fn.__name__, (*types, *sorted(kwargs.items()))))

    monkeypatch.setattr(GridExecutor, "__call__", launch)
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield kept


@pytest.mark.parametrize(
    "name", ["FP8", "FP8 in blocks", "INT8", "INT4 in groups of 32", "INT4 in groups of 128"]
)
@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32])
def test_a_gpu_never_waits_and_the_first_product_compiles_all(
    name: str, dtype: torch.dtype, launches: Launches
) -> None:
    kind, gpu = KINDS[name], torch.device("cuda", 0)
    made = kind._replace(has_order=False).make().to(gpu)
    order = torch.arange(kind.inputs, device=gpu) if kind.has_order else None
    matrix = pack_for_gpu([replace(made, order=order)], kind.outputs, None, gpu, HOPPER)

    def multiply(rows: int) -> None:
        x, residual = (
            torch.empty((rows, size), dtype=dtype, device=gpu) for size in (kind.inputs, kind.outputs)
        )
        assert multiply_on_gpu(x, matrix).shape == residual.shape
        assert multiply_on_gpu(x, matrix, residual) is residual
        assert multiply_on_gpu(x, matrix, wide=True).dtype == FLOAT32

    multiply(1)
    compiled = set(launches)
    for rows in (2, 16, 17, 65, 300, 1025, 4096):
        multiply(rows)
    assert set(launches) == compiled
