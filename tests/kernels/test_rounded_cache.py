"""A cache of rounded numbers: what is written, what is read, and that no other row's numbers matter."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from millrace_kernels.device_kernels import Kernels, QueryRows, select_kernels, select_triton
from millrace_kernels.native.abi import Library
from millrace_kernels.native.program import Batch, NativeProgram, Sizes
from millrace_kernels.native.recording.recorder import record
from millrace_kernels.native.selfcheck import (
    CACHE_BOUNDS,
    Case,
    allocate_poisoned_cache,
    build_layer,
    measure_error,
    run_native,
)
from millrace_kernels.native.weights.packing import NativePacker
from millrace_kernels.paged_attention.cache import LARGEST, KvCache, KvFormat, round_heads
from millrace_kernels.paged_attention.reference import paged_attention_reference
from millrace_kernels.rotary_kv_write.reference import rotary_kv_write_reference
from millrace_kernels.step import HeadNorms, Heads
from tests.kernels.layer_shapes import PRODUCTS, SHAPES
from tests.kernels.libraries import READS_KERNELS

CPU = torch.device("cpu")
ROUNDED = (KvFormat.INT8, KvFormat.FP8)
DTYPES = (torch.float32, torch.bfloat16)


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=9),
    st.sampled_from(ROUNDED),
)
def test_a_rounded_head_is_off_by_half_a_step_at_most(numbers: list[float], form: KvFormat) -> None:
    head = torch.tensor(numbers)
    values, scale = (one.double() for one in round_heads(head, form))
    most = LARGEST[form]
    if head.abs().max() < 1e-30:
        assert not values.any()
        assert scale == 0
        return
    assert values.abs().max() == most
    quotients = head.double() / scale
    assert quotients.abs().max() < most * (1 + 2**-7)
    step = torch.ones_like(quotients)
    if form is KvFormat.FP8:  # 3 bits behind the first, and steps of 2^-9 for the smallest
        step = torch.maximum(quotients.abs().log2().floor().exp2() / 8, torch.tensor(2.0**-9))
    assert ((values - quotients).abs() <= step / 2 * 1.00001).all()


@pytest.mark.parametrize("form", ROUNDED)
def test_halves_round_to_even_and_what_is_not_finite_spoils_its_head_alone(form: KvFormat) -> None:
    heads = torch.tensor([[127.0, 0.5, 1.5, -2.5], [1, 2, torch.nan, 3], [torch.inf, 1, 1, 1], [0, 0, 0, 0]])
    values, scales = round_heads(heads, form)
    assert scales.isfinite().tolist() == [True, False, False, True]
    assert scales[3] == 0
    assert not values.float()[1:].any()
    if form is KvFormat.INT8:
        assert values[0].tolist() == [127, 0, 2, -2]


def rounded(batch: Any, form: KvFormat) -> KvCache:
    """The batch's cache, rounded: what no sequence owns has NaN scales."""
    values, scales = round_heads(batch.cache, form)
    return KvCache(values, scales, form)


def attend(kernels: Kernels, batch: Any, cache: KvCache, window: int | None) -> torch.Tensor:
    starts, contexts = torch.tensor(batch.starts), torch.tensor(batch.contexts)
    rows = QueryRows(batch.starts, batch.contexts, starts, contexts, torch.arange(len(batch.contexts)))
    planned = kernels.plan_attention(rows, batch.tables, cache.num_kv_heads, 16, window)
    return planned(batch.query, cache, batch.scale)


PATHS = (("torch", KvFormat.INT8), ("triton", KvFormat.INT8), ("triton", KvFormat.FP8))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "dtype", "window"),
    [
        (4, 2, 8, torch.float32, None),
        (4, 2, 8, torch.bfloat16, 300),
        (7, 1, 24, torch.bfloat16, None),
        (7, 1, 24, torch.float32, 20),
        (3, 3, 6, torch.bfloat16, 20),
    ],
)
@pytest.mark.parametrize(("name", "form"), PATHS)
def test_attention_over_rounded_numbers_agrees_with_the_reference(  # noqa: PLR0917
    paged: Any,
    name: str,
    form: KvFormat,
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    window: int | None,
) -> None:
    kernels = select_kernels(CPU) if name == "torch" else select_triton()
    batch = paged([1, 1, 40, 1, 7], [5, 300, 70, 257, 20], heads, kv_heads, head_dim, dtype)
    if window is not None:
        batch.forget(window)
    cache = rounded(batch, form)
    query, _, *tables = batch.tensors()
    expected = paged_attention_reference(query, cache, *tables, batch.scale, window)
    assert expected.isfinite().all()
    bound = 1e-5 if dtype == torch.float32 else 2e-2
    found = attend(kernels, batch, cache, window)
    torch.testing.assert_close(found, expected, atol=bound, rtol=bound)


@pytest.mark.usefixtures("exact_matmul")
@pytest.mark.parametrize(("name", "form"), PATHS)
def test_a_rows_bits_are_the_same_alone_and_in_any_crowd(paged: Any, name: str, form: KvFormat) -> None:
    """Also beside a row that a NaN has spoilt."""
    kernels = select_kernels(CPU) if name == "torch" else select_triton()
    crowd = paged([1, 1, 1, 6], [530, 257, 40, 30], 6, 2, 24)
    expected = attend(kernels, crowd, rounded(crowd, form), None)
    crowd.cache[crowd.tables[1, 3], 1, 0, 5] = float("nan")
    found = attend(kernels, crowd, rounded(crowd, form), None)
    assert found[1, :3].isnan().all()
    assert torch.equal(found[1, 3:], expected[1, 3:]), "the other KV head"
    assert torch.equal(found[[0, *range(2, 9)]], expected[[0, *range(2, 9)]])
    alone = object.__new__(type(crowd))
    vars(alone).update(vars(crowd), query=crowd.query[:1], tables=crowd.tables[:1])
    alone.starts, alone.contexts = [0, 1], [530]
    assert torch.equal(attend(kernels, alone, rounded(crowd, form), None), expected[:1])


@pytest.mark.parametrize("form", ROUNDED)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "epsilon"), [(Heads(4, 2, 8), None), (Heads(3, 1, 20), 1e-2), (Heads(12, 4, 96), 1e-2)]
)
@pytest.mark.filterwarnings("ignore:invalid value")  # numpy's, where the interpreter turns an infinite value
def test_triton_writes_what_the_reference_writes(
    load_kernel: Any, heads: Heads, epsilon: float | None, dtype: torch.dtype, form: KvFormat
) -> None:
    """Of six tokens one pads, one has a NaN, one an infinity among its values, and one is all zeros."""
    count = heads.num_heads + 2 * heads.num_kv_heads
    qkv = (torch.randn(6, count * heads.head_dim) * 3).to(dtype)
    qkv[1, -heads.head_dim] = torch.nan
    qkv[2, -2] = torch.inf
    qkv[3] = 0
    turns, positions = torch.randn(21, heads.head_dim // 2), torch.tensor([17, 3, 20, 5, 1, 0])
    table, slots = torch.stack((turns.cos(), turns.sin())), torch.tensor([17, 3, 40, 18, 0, -1])
    weights = (torch.rand(2, heads.head_dim) + 0.5).to(dtype)
    norms = None if epsilon is None else HeadNorms(weights[0], weights[1], epsilon)
    mine, theirs = (allocate_poisoned_cache(3, heads, dtype, form) for _ in "12")
    rotary_kv_write_reference(qkv, heads, positions, table, theirs, slots, norms)
    load_kernel("rotary_kv_write")(qkv, heads, positions, table, mine, slots, norms)
    assert mine.scales is not None
    assert theirs.scales is not None
    # The interpreter cuts numbers off to bfloat16, in which the definition rounds them.
    bound = 0 if dtype == torch.float32 else 2**-5
    torch.testing.assert_close(mine.scales, theirs.scales, rtol=bound, atol=0, equal_nan=True)
    assert int(theirs.scales.isfinite().sum()) == 5 * 2 * heads.num_kv_heads - 2
    found, expected = mine.data.float(), theirs.data.float()
    step = torch.ones(()) if form is KvFormat.INT8 else expected.abs() / 8 + 2**-9
    off = (found - expected).abs()
    if dtype == torch.float32:  # a number between two may be rounded either way
        assert (off > 0).float().mean() < 0.01
        assert (off <= step).all()
    else:
        assert off.max() <= (4 if form is KvFormat.INT8 else 2 * 32)  # float8's last step is 32


LAYERS = [
    pytest.param(name, dtype, marks=() if dtype is torch.bfloat16 else READS_KERNELS)
    for name in SHAPES
    if name not in PRODUCTS
    for dtype in DTYPES
]


@pytest.mark.parametrize(("name", "dtype"), LAYERS)
def test_a_native_layer_agrees_with_the_torch_path(library: Library, name: str, dtype: torch.dtype) -> None:
    case = replace(SHAPES[name], kv=KvFormat.INT8)
    assert measure_error(case, library, dtype) < CACHE_BOUNDS[dtype]


@pytest.mark.parametrize(
    ("dtype", "num_threads", "window"),
    [(torch.bfloat16, 3, None), (torch.float32, 2, 530), (torch.bfloat16, 2, 64)],
)
def test_a_native_rows_bits_depend_on_nothing_but_the_row(
    library: Library, dtype: torch.dtype, num_threads: int, window: int | None
) -> None:
    """Threads share the spans of the longest; blocks that a window has passed are poisoned."""
    lengths, heads = (1200, 1100, 40), Heads(3, 1, 20)

    def run(*steps: tuple[int, ...], threads: int = num_threads) -> torch.Tensor:
        case = Case(lengths=lengths, heads=heads, steps=steps, window=window, kv=KvFormat.INT8)
        return run_native(case, library, dtype, threads)

    expected = run(lengths, threads=1)
    assert expected.isfinite().all()
    assert torch.equal(run((1199, 1000, 40), (1, 100, 0))[:2], expected[:2])
    assert torch.equal(run((500, 577, 1), (699, 522, 36), (1, 1, 3)), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_native_step_writes_its_own_tokens_alone_and_a_nan_spoils_its_row_alone(
    library: Library, dtype: torch.dtype
) -> None:
    case = Case(heads=Heads(6, 2, 16), lengths=(16,))
    layer = build_layer(NativePacker(dtype), case)
    program = NativeProgram(library, record(layer.forward, layer.logits, dtype), Sizes(16, 2, 2))
    cache = allocate_poisoned_cache(2, case.heads, dtype, KvFormat.INT8)
    program.set_caches([cache])
    tokens, blocks = torch.arange(32).view(2, 16), torch.tensor([[0], [1]])
    assert cache.scales is not None

    def compute(begin: int, count: int) -> torch.Tensor:
        batch = Batch(*(np.array([*pair], dtype=np.int32) for pair in ((0, 1), (begin,) * 2, (count,) * 2)))
        return program.run(batch, [0, 1], tokens, [blocks]).clone()

    before = cache.data.clone()
    for count in range(1, 17):
        expected = compute(count - 1, 1)
        assert int(cache.scales.isnan().sum()) == cache.scales.numel() * (16 - count) // 16
        assert int((cache.data != before).sum()) <= 2 * 2 * 2 * 16, (
            "a key and a value of two heads of each row"
        )
        before = cache.data.clone()
    whole = cache.data.clone(), cache.scales.clone()
    for position in range(16):
        compute(position, 1)
        assert torch.equal(cache.data, whole[0])
        assert torch.equal(cache.scales, whole[1])
    for part in (0, 1):
        cache.scales[1, part, 0, 3] = torch.nan
        found = compute(15, 1)
        assert found[1].isnan().all()
        assert torch.equal(found[0], expected[0])
        cache.scales.copy_(whole[1])


def test_a_native_program_refuses_scales_that_do_not_fit(good: Any) -> None:
    layer = build_layer(NativePacker(torch.float32), Case())
    program = NativeProgram(Library(good), record(layer.forward, layer.logits, torch.float32), Sizes(8, 2, 1))
    whole = allocate_poisoned_cache(6, Case().heads, torch.float32, KvFormat.INT8)
    assert whole.scales is not None
    fp8 = allocate_poisoned_cache(6, Case().heads, torch.float32, KvFormat.FP8)
    for wrong in (
        KvCache(whole.data, None, KvFormat.INT8),
        KvCache(whole.data, whole.scales[:5], KvFormat.INT8),
        KvCache(whole.data, whole.scales.float(), KvFormat.INT8),
        KvCache(whole.data, whole.scales),
        fp8,
    ):
        with pytest.raises(AssertionError):
            program.set_caches([wrong])
    program.set_caches([whole])
