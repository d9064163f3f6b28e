"""Native and Triton kernels draw what the plain-torch reference draws, and that draws from the softmax."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from millrace_kernels.native.abi import Library
from millrace_kernels.sampling import native
from millrace_kernels.sampling.columns import (
    NO_MASK,
    NOT_FINITE,
    NOTHING_ALLOWED,
    NUM_PLACES,
    PARAMETERS,
    Draws,
    pack_parameters,
)
from millrace_kernels.sampling.gpu import (
    triton_candidates,
    triton_draw,
    triton_kernel,
    triton_logprobs,
    triton_shape,
    triton_table,
)
from millrace_kernels.sampling.gpu.triton_shape import Shape
from millrace_kernels.sampling.native import NativeSampler
from millrace_kernels.sampling.reference import (
    _fraction,
    _repeat_less,
    sample_reference,
    top_logprobs_reference,
    weigh,
)
from millrace_kernels.sampling.state import SlotState, pack_bias
from tests.kernels.libraries import READS_KERNELS

VOCABULARIES = (1, 2, 7, 15, 16, 17, 50, 255, 256, 257, 1000, 4099)
PLAIN = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "seed": 0,
    "frequency": 0.0,
    "presence": 0.0,
    "repetition": 1.0,
    "has_fixed_mask": False,
}
KNOWN = torch.zeros((1, 8), dtype=torch.int64)
MOST_BIASED = 2048
Place = tuple[int, ...]
"""Slot, number of prompt tokens, position and mask; perhaps the range of its biases."""

parameters = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 1e-30, 1e-6, 1e-3, 0.1, 0.7, 1.0, 1.9, 50.0, 1e9]),
        "top_k": st.sampled_from([0, 1, 2, 5, 40, 300, 4098, 4099, 10**6, 2**40]),
        "top_p": st.sampled_from([0.0, 1e-9, 0.1, 0.5, 0.9, 0.95, 0.999999, 1.0]),
        "min_p": st.sampled_from([0.0, 0.0, 1e-9, 0.02, 0.5, 1.0]),
        "seed": st.integers(0, 2**64 - 1),
        "frequency": st.sampled_from([0.0, 0.3, -1.7]),
        "presence": st.sampled_from([0.0, 0.0, 1.1]),
        "repetition": st.sampled_from([1.0, 1.0, 1.3, 0.7]),
        "has_fixed_mask": st.sampled_from([False, False, True]),
    }
)


@pytest.fixture(autouse=True, scope="module")
def _torch_keeps_to_one_thread() -> Iterator[None]:
    """The reference on small rows is five times as slow on two busy threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def sampler(library: Library, vocabulary: int) -> NativeSampler:
    return NativeSampler(library, vocabulary)


def draws_of(rows: list[dict[str, Any]], places: list[Place]) -> Draws:
    packed = b"".join(pack_parameters(**(PLAIN | row)) for row in rows)
    whole = [(*place, 0, 0)[:NUM_PLACES] for place in places]
    return Draws(np.frombuffer(packed, dtype=PARAMETERS), np.array(whole, dtype=np.int64))


def without_masks(draws: Draws) -> Draws:
    return Draws(draws.parameters, np.where(np.arange(NUM_PLACES) == 3, NO_MASK, draws.places))


def state_of(tokens: torch.Tensor, vocabulary: int) -> SlotState:
    """Slots without biases, whose fixed masks allow nothing."""
    made = SlotState.allocate(*tokens.shape, vocabulary, 0, tokens.device)
    return made._replace(tokens=tokens)


def logits_of(kind: str, rows: int, vocabulary: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(rows, vocabulary, generator=generator)
    return {
        "normal": made * 3,
        "rounded": (made * 3).bfloat16().float(),
        "tied": (made * 2).round(),
        "equal": torch.full_like(made, -7.5),
        "two": torch.where(made > 0.5, 1.0, -2.0),
        "zeros": torch.where(made > 0, 0.0, -0.0),
        "peaked": made.exp().exp(),
        "wide": made * 1e4,
        "huge": made * 1e37,
        "tiny": made * 1e-40,
    }[kind]


KINDS = ("normal", "rounded", "tied", "equal", "zeros", "peaked", "wide", "huge", "tiny")


Case = tuple[torch.Tensor, Draws, SlotState, torch.Tensor | None]


def batch(
    rows: list[dict[str, Any]], kind: str, vocabulary: int, seed: int
) -> tuple[torch.Tensor, Draws, SlotState, torch.Tensor]:
    """Logits in a wider table, histories, biases, and masks of which some rows have one.

    Unused entries of the tables name no token: they must not be read.
    """
    generator = torch.Generator().manual_seed(seed)
    count = len(rows)
    table = torch.full((count, vocabulary + seed % 3), float("nan"))
    table[:, :vocabulary] = logits_of(kind, count, vocabulary, seed)
    known = torch.randint(0, vocabulary, (count, 41), generator=generator)
    words = (2 * count, -(-vocabulary // 32))
    masks = torch.randint(-(2**31), 2**31, words, generator=generator, dtype=torch.int32)
    masks[count:] |= masks[:count]  # else two masks seldom leave a token
    biases = torch.full((count, min(vocabulary, MOST_BIASED) + 2), 2**60)
    for slot in range(count):
        biases[slot, 1:-1] = torch.from_numpy(pack_bias(bias_of(vocabulary, generator)))
    places = [place_of(count, r, vocabulary, seed) for r in range(count)]
    state = SlotState(known, biases, masks[count:])
    return table[:, :vocabulary], draws_of(rows, places), state, masks[:count]


def place_of(count: int, row: int, vocabulary: int, seed: int) -> Place:
    mask = row if (seed + row) % 3 == 0 else NO_MASK
    begin = 1 + row % 2
    end = max(begin, 1 + min(vocabulary, MOST_BIASED) - row % 4) if (seed + row) % 5 < 3 else begin
    return count - 1 - row, 5, 5 + (seed + 9 * row) % 36, mask, begin, end


def bias_of(vocabulary: int, generator: torch.Generator) -> dict[int, float]:
    """Biases of tokens in any order, as many as a row may have; a few ban one."""
    ids = torch.randperm(vocabulary, generator=generator)[:MOST_BIASED].tolist()
    values = torch.randn(len(ids), generator=generator).mul(5)
    return dict(zip(ids, values.masked_fill(values > 9, -torch.inf).tolist(), strict=True))


def check(library: Library, rows: list[dict[str, Any]], kind: str, vocabulary: int, seed: int) -> None:
    case = batch(rows, kind, vocabulary, seed)
    before = case[0].clone()
    expected = sample_reference(*case)
    found = sampler(library, vocabulary).sample(*case)
    assert found.faults.tolist() == expected.faults.tolist()
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert torch.equal(before, case[0]), "the logits are not the sampler's to change"


def check_on_gpu(case: Case) -> None:
    """The Triton kernels, interpreted: their infinities are as on a GPU, and no reason to warn."""
    _, draws, (known, *_), _ = case
    expected, stored = sample_reference(*case), known.clone()
    stored[draws.slot, draws.position] = expected.tokens
    with np.errstate(all="ignore"):
        found = triton_kernel.sample(*case)
    assert found.faults.tolist() == expected.faults.tolist()
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert torch.equal(known, stored)


@pytest.fixture
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a short vocabulary has several, and some rows have more candidates than there is room for."""
    small = Shape(chunk=128, room=64, candidates=64, marked=32, markers=2)
    monkeypatch.setattr(triton_shape, "SHAPE", small)


@READS_KERNELS
@pytest.mark.usefixtures("_small_blocks")
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    rows=st.lists(parameters, min_size=1, max_size=5),
    kind=st.sampled_from(KINDS),
    vocabulary=st.sampled_from([1, 2, 7, 50, 128, 257]),
    seed=st.integers(0, 10**6),
)
def test_triton_draws_what_the_reference_draws(
    rows: list[dict[str, Any]], kind: str, vocabulary: int, seed: int
) -> None:
    check_on_gpu(batch(rows, kind, vocabulary, seed))


@pytest.mark.parametrize("kind", ["normal", "tied", "equal"])
def test_triton_draws_from_a_longer_vocabulary(kind: str) -> None:
    rows = [
        {"seed": 1, "top_p": 0.9}, {"seed": 2, "top_k": 40}, {"seed": 3, "top_k": 900, "top_p": 0.5},
        {"seed": 4, "frequency": 0.7, "min_p": 0.01}, {"temperature": 0.0, "has_fixed_mask": True},
        {"seed": 5, "repetition": 1.3, "top_p": 0.9, "has_fixed_mask": True},
    ]  # fmt: skip
    check_on_gpu(batch(rows, kind, 5003, 8))


@pytest.fixture
def _little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that rows are flat, and an error if one program looks through such a row."""
    small = Shape(chunk=32, room=8, candidates=32, marked=32, markers=1)
    monkeypatch.setattr(triton_shape, "SHAPE", small)
    monkeypatch.setattr(triton_draw, "draw_from_candidates", None)


FLAT = [
    {"temperature": 1e3, "top_p": 0.0}, {"temperature": 1e3, "top_p": 0.3, "seed": 1, "frequency": 0.3},
    {"temperature": 1e3, "top_p": 0.999999, "seed": 3, "min_p": 0.99},
]  # fmt: skip
"""Of a few tens of logits that are not far apart, all are in the bucket of the largest one."""


@pytest.mark.usefixtures("_little_room")
@pytest.mark.parametrize(("kind", "vocabulary"), [("normal", 20), ("normal", 70), ("two", 32)])
def test_triton_draws_from_flat_rows_by_all_programs(kind: str, vocabulary: int) -> None:
    logits, draws, state, _ = batch(FLAT, kind, vocabulary, 6)
    no_mask = without_masks(draws)
    no_mask.places[:, -2:] = 0
    check_on_gpu((logits, no_mask, state, None))


@pytest.mark.usefixtures("_little_room")
def test_triton_keeps_the_first_ties_of_flat_rows() -> None:
    """Others are just above and below, and some have no weight."""
    cases = [(0.0, 0), (0.25, 3), (0.5, 30), (0.7, 33), (0.9, 60), (0.999, 7)]
    logits = torch.full((len(cases), 90), -0.0)
    for row, (_, num_ties) in enumerate(cases):
        logits[row, num_ties:60], logits[row, 60:80], logits[row, 80:] = 1e-45, -1e-45, -3e38
    asked = [{"top_p": top_p, "seed": 5 + row} for row, (top_p, _) in enumerate(cases)]
    draws = draws_of(asked, [(0, 0, row, NO_MASK) for row in range(len(cases))])
    check_on_gpu((logits, draws, state_of(KNOWN.clone(), 90), None))


def test_triton_has_room_where_top_k_wants_more_tokens_than_are_likely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mask leaves three tokens, a low temperature one: else one program reads the whole row again."""
    small = Shape(chunk=32, room=8, candidates=32, marked=32, markers=1)
    monkeypatch.setattr(triton_shape, "SHAPE", small)
    monkeypatch.setattr(triton_candidates, "read_logits", None)
    logits = torch.linspace(-9, 9, 90)[torch.randperm(90, generator=torch.Generator().manual_seed(1))]
    rows = [{"temperature": 0.03, "top_k": 20, "seed": 1}, {"temperature": 0.03, "top_k": 60, "top_p": 0.9}]
    draws = draws_of(rows, [(0, 0, 1 + row, NO_MASK) for row in range(2)])
    check_on_gpu((logits.repeat(2, 1), draws, state_of(KNOWN.clone(), 90), None))


def test_triton_tells_faults_and_takes_no_masks() -> None:
    logits, draws, state, masks = batch(
        [{"top_p": 0.5}, {}, {"temperature": 0.0}, {"top_k": 2}] * 2, "normal", 50, 3
    )
    logits[0, 7], logits[1, 49], logits[2, 0] = torch.nan, torch.inf, -torch.inf
    masks[:] = 0
    check_on_gpu((logits, draws, state, masks))
    check_on_gpu((logits, without_masks(draws), state, None))


@pytest.mark.usefixtures("_small_blocks")
def test_rows_draw_from_a_table_on_the_device_and_rows_without_a_slot_draw_nothing() -> None:
    rows = [
        {"temperature": 0.0, "top_p": 0.5}, {"seed": 3}, {"seed": 4, "temperature": 0.7, "min_p": 0.1},
        {"seed": 5, "top_p": 0.9}, {"seed": 6, "top_k": 9, "repetition": 1.3, "has_fixed_mask": True},
        {"seed": 7, "top_k": 150, "frequency": 0.7},
    ]  # fmt: skip
    logits, draws, state, _ = batch(rows, "normal", 257, 6)
    draws, known = without_masks(draws), state.tokens
    expected = sample_reference(logits, draws, state).tokens
    stored, padded = known.clone(), torch.cat((logits, torch.full((2, 257), torch.nan)))
    stored[draws.slot, draws.position] = expected
    table = torch.full((8, triton_table.COLUMNS.value), -1)
    triton_table.lay_out(draws, table[:6].numpy())
    sampled = torch.full((2, 8), 77)
    triton_kernel.sample_recorded(padded, table, state, sampled)
    assert sampled.tolist() == [[*expected.tolist(), 77, 77], [0] * 6 + [77, 77]]
    assert torch.equal(known, stored)


@pytest.mark.parametrize("vocabulary", [1, 40, 5003])
@pytest.mark.parametrize("number", [0, 3, 20])
def test_triton_measures_the_log_probabilities_of_the_rows_that_ask(vocabulary: int, number: int) -> None:
    logits = torch.full((6, vocabulary + 3), torch.nan)[:, :vocabulary]
    logits.copy_(torch.randn(6, vocabulary) * 3)
    rows, tokens = torch.tensor([4, 1, 5]), torch.randint(0, vocabulary, (6,))
    found = triton_logprobs.top_logprobs(logits, rows, tokens, number)
    expected = top_logprobs_reference(logits, rows, tokens, number)
    torch.testing.assert_close(found.drawn, expected.drawn)
    torch.testing.assert_close(found.values, expected.values)
    assert torch.equal(found.ids.long(), expected.ids)


def test_triton_ranks_equal_logits_by_their_ids() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0, 3.0, -5.0, 1.0]])
    found = triton_logprobs.top_logprobs(logits, torch.tensor([0]), torch.tensor([2]), 5)
    assert found.ids.tolist() == [[1, 2, 4, 0, 6]]


cases = given(
    rows=st.lists(parameters, min_size=1, max_size=12),
    kind=st.sampled_from(KINDS),
    vocabulary=st.sampled_from(VOCABULARIES),
    seed=st.integers(0, 10**6),
)


@settings(max_examples=40, deadline=None, derandomize=True)
@cases
def test_every_instruction_set_draws_what_the_reference_draws(
    library: Library, rows: list[dict[str, Any]], kind: str, vocabulary: int, seed: int
) -> None:
    check(library, rows, kind, vocabulary, seed)


@pytest.mark.slow
@pytest.mark.long
@settings(max_examples=600, deadline=None)
@cases
def test_it_does_so_in_thousands_of_rows(
    library: Library, rows: list[dict[str, Any]], kind: str, vocabulary: int, seed: int
) -> None:
    check(library, rows, kind, vocabulary, seed)


WHOLE: list[dict[str, Any]] = [
    {"temperature": 0.0}, {"seed": 1}, {"top_k": 50, "seed": 2}, {"top_p": 0.95, "seed": 3},
    {"top_k": 4000, "top_p": 0.9, "seed": 4}, {"temperature": 0.3, "top_p": 0.5, "frequency": 0.5},
    {"temperature": 5.0, "top_k": 20000, "top_p": 0.99}, {"min_p": 0.02, "seed": 5},
    {"top_k": 300, "top_p": 0.9, "min_p": 0.01, "seed": 6}, {"repetition": 1.2, "has_fixed_mask": True},
]  # fmt: skip


@cache
def tokens_of_whole(kind: str, seed: int) -> list[int]:
    """Return what the reference draws, once for all instruction sets."""
    tokens: list[int] = sample_reference(*batch(WHOLE, kind, 49152, seed)).tokens.tolist()
    return tokens


@pytest.mark.parametrize("kind", ["normal", "rounded", "equal", "peaked"])
def test_a_whole_vocabulary(library: Library, kind: str) -> None:
    for seed in range(3):
        found = sampler(library, 49152).sample(*batch(WHOLE, kind, 49152, seed))
        assert found.tokens.tolist() == tokens_of_whole(kind, seed)


def test_a_row_draws_the_same_alone_and_in_a_crowd_by_any_number_of_threads(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"seed": n, "top_k": n % 3 * 7, "top_p": 0.8 + n % 2 / 5, "presence": n % 2, "repetition": 1 + n % 3,
         "has_fixed_mask": n % 4 == 1}
        for n in range(23)
    ]  # fmt: skip
    logits, draws, state, masks = batch(rows, "rounded", 999, 4)
    together = sampler(library, 999).sample(logits, draws, state, masks).tokens.tolist()
    monkeypatch.setattr(native, "WORTH_WAKING", 0)
    pool = library.new_pool(2, 64)
    shared = NativeSampler(library, 999, pool).sample(logits, draws, state, masks).tokens.tolist()
    library.free_pool(pool)
    alone = [
        sampler(library, 999)
        .sample(logits[r : r + 1], Draws(draws.parameters[r : r + 1], draws.places[r : r + 1]), state, masks)
        .tokens.item()
        for r in range(len(rows))
    ]
    assert together == shared == alone


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_is_marked_wherever_it_lies(library: Library, value: float) -> None:
    for vocabulary in (1, 17, 300, 600):
        for at in {0, vocabulary // 2, vocabulary - 1}:
            logits = torch.randn(3, vocabulary)
            logits[1, at] = value
            draws = draws_of([{"top_p": 0.9}] * 3, [(0, 0, 0, NO_MASK)] * 3)
            state = state_of(KNOWN, vocabulary)
            expected = sample_reference(logits, draws, state)
            found = sampler(library, vocabulary).sample(logits, draws, state)
            assert found.faults.tolist() == expected.faults.tolist() == [0, NOT_FINITE, 0]
            assert found.tokens.tolist() == expected.tokens.tolist()


def test_a_mask_binds_its_row_alone_and_one_that_allows_nothing_is_a_fault(
    library: Library,
) -> None:
    logits = torch.arange(50.0).expand(4, 50).contiguous()
    masks = torch.zeros((3, 2), dtype=torch.int32)
    masks[0, 0], masks[2, 1] = 1 << 3 | 1 << 5, -1
    draws = draws_of(
        [{"temperature": t} for t in (0, 0.5, 0, 0)], [(0, 0, 9, at) for at in (0, 1, NO_MASK, 2)]
    )
    state = state_of(KNOWN, 50)
    for found in (
        sample_reference(logits, draws, state, masks),
        sampler(library, 50).sample(logits, draws, state, masks),
    ):
        assert found.faults.tolist() == [0, NOTHING_ALLOWED, 0, 0]
        assert found.tokens.tolist() == [5, 0, 49, 49]


def test_a_mask_that_is_not_there_is_our_own_bug(library: Library) -> None:
    logits, mask = torch.arange(50.0).expand(1, 50), torch.full((1, 2), 1 << 3, dtype=torch.int32)
    own, state = NativeSampler(library, 50), state_of(KNOWN, 50)
    for sample in (sample_reference, own.sample):
        masked = draws_of([{"temperature": 0}], [(0, 0, 9, 0)])
        assert sample(logits, masked, state, mask).tokens.tolist() == [35]
        for draws, masks in ((masked, None), (draws_of([{}], [(0, 0, 9, 1)]), mask)):
            with pytest.raises(AssertionError, match="a mask that does not exist"):
                sample(logits, draws, state, masks)
        with pytest.raises(AssertionError, match="a bias that does not exist"):
            sample(logits, draws_of([{}], [(0, 0, 9, NO_MASK, 0, 1)]), state)
        plain = draws_of([{"temperature": 0}], [(0, 0, 9, NO_MASK)])
        assert sample(logits, plain, state).tokens.tolist() == [49]


BAN = -torch.inf
CHANGES: dict[str, tuple[list[float], dict[str, Any], dict[int, float], int]] = {
    "bias lowers": ([4.0, 5.0, 4.5], {}, {1: -1.0}, 2),
    "bias raises": ([4.0, 5.0, 4.5], {}, {2: 0.25, 0: 1.5}, 0),
    "bias bans": ([4.0, 5.0, 4.5], {}, {1: BAN, 2: BAN}, 0),
    "bias bans all": ([4.0, 5.0, 4.5], {}, {0: BAN, 1: BAN, 2: BAN}, -1),
    "repetition divides what the prompt has": ([4.0, 5.0, 3.0], {"repetition": 1.25}, {}, 0),
    "repetition divides what was drawn": ([4.0, 3.0, 4.5], {"repetition": 1.5}, {}, 0),
    "repetition multiplies what is negative": ([-3.0, -2.0, -3.5], {"repetition": 2.0}, {}, 0),
    "repetition under one": ([-3.0, -5.0, -4.0], {"repetition": 0.5}, {}, 2),
    "bias, then repetition": ([3.5, 1.0, 1.0], {"repetition": 2.0}, {1: 5.0}, 0),
    "repetition, then frequency": ([2.5, -9.0, 6.0], {"repetition": 2.0, "frequency": 0.5}, {}, 0),
    "presence is not of the prompt": ([4.0, 4.5, 3.0], {"presence": 1.0}, {}, 1),
    "a fixed mask": ([4.0, 5.0, 4.5], {"has_fixed_mask": True}, {}, 2),
    "a fixed mask and a bias": ([4.0, 5.0, 4.5], {"has_fixed_mask": True}, {2: BAN, 1: 9.0}, 0),
}
"""Logits of three tokens, what the row asks for, its bias, and the token, or -1 for none. The prompt has
token 1, the output has 2 twice, and the fixed mask allows 0 and 2."""


@pytest.mark.parametrize("name", list(CHANGES))
def test_what_changes_a_logit(library: Library, name: str) -> None:
    logits, asked, bias, token = CHANGES[name]
    known, entries = torch.tensor([[1, 2, 2, 0]]), np.append(pack_bias(bias), 2**60)
    state = SlotState(known, torch.tensor(entries)[None], torch.tensor([[0b101]], dtype=torch.int32))
    draws = draws_of([asked | {"temperature": 0.0}], [(0, 1, 3, NO_MASK, 0, len(bias))])
    for sample in (sample_reference, sampler(library, 3).sample, triton_kernel.sample):
        with np.errstate(all="ignore"):
            found = sample(torch.tensor([logits]), draws, state)
        assert found.faults.tolist() == [NOTHING_ALLOWED if token < 0 else 0]
        assert found.tokens.tolist() == [max(token, 0)]


def test_a_row_with_two_masks_draws_what_both_allow(library: Library) -> None:
    logits, known = torch.arange(50.0).expand(3, 50).contiguous(), torch.zeros((2, 8), dtype=torch.int64)
    fixed = torch.tensor([[1 << 3 | 1 << 5, 0], [1 << 4, 0]], dtype=torch.int32)
    masks = torch.tensor([[1 << 3 | 1 << 4, -1]], dtype=torch.int32)
    state = state_of(known, 50)._replace(masks=fixed)
    asked = [{"temperature": 0.0, "has_fixed_mask": True}] * 3
    draws = draws_of(asked, [(0, 1, 2, 0), (1, 1, 2, 0), (0, 1, 3, NO_MASK)])
    for sample in (sample_reference, sampler(library, 50).sample, triton_kernel.sample):
        assert sample(logits, draws, state, masks).tokens.tolist() == [3, 4, 5]


@pytest.mark.parametrize("repetition", [0.7, 1.0, 1.1, 1.3])
def test_repetition_is_transformers(repetition: float) -> None:
    for kind in ("normal", "rounded", "zeros", "huge", "tiny"):
        logits, known = logits_of(kind, 1, 4099, 3), torch.arange(0, 4099, 3)
        expected = RepetitionPenaltyLogitsProcessor(repetition)(known[None], logits.clone())
        penalty = float(np.float32(repetition))
        assert torch.equal(_repeat_less(logits[0], known, penalty), expected[0])


def test_weights_are_the_softmax_in_integers() -> None:
    z = torch.cat((torch.linspace(-25, 3, 100_001), torch.tensor([3.0, -1e30, -torch.inf])))[None]
    for temperature in (0.2, 1.0, 1.7):
        packed = np.frombuffer(pack_parameters(**(PLAIN | {"temperature": temperature})), dtype=PARAMETERS)
        weights = weigh(z, torch.tensor(packed["inverse_temperature"].copy()))[0]
        exact = ((z[0].double() - 3) / temperature).exp() * 2.0**30
        assert weights.max() == 2**30
        assert weights[-2:].tolist() == [0, 0]
        error = (weights - exact).abs()
        assert (error <= 0.51 + exact * 2.0**-18).all()
        assert error.sum() / exact.sum() < 2.0**-20


def test_the_kernel_weighs_to_the_bit(library: Library) -> None:
    generator = torch.Generator().manual_seed(9)
    z = torch.cat(
        (torch.randn(300_001, generator=generator) * 5, torch.tensor([-torch.inf, -3e38, 0.0, -0.0]))
    )
    for temperature in (1e-6, 0.013, 0.7, 1.0, 3.0, 1e6):
        packed = np.frombuffer(pack_parameters(**(PLAIN | {"temperature": temperature})), dtype=PARAMETERS)
        inverse = torch.tensor(packed["inverse_temperature"].copy())
        assert torch.equal(native.weigh_natively(library, z, inverse.item()), weigh(z[None], inverse)[0])


def test_a_draw_at_the_edge_between_two_tokens(library: Library) -> None:
    """Four equal tokens weigh 2^32 together, so the random bits are the target."""
    edges = {
        0: 0,
        2**30 - 1: 0,
        2**30: 1,
        2**31 - 1: 1,
        2**31: 2,
        3 * 2**30 - 1: 2,
        3 * 2**30: 3,
        2**32 - 1: 3,
    }
    rows = [{"seed": seed_of(bits, 9)} for bits in edges]
    draws = draws_of(rows, [(0, 0, 9, NO_MASK)] * len(rows))
    logits = torch.tensor([[1.0, -80.0, 1.0, 1.0, -80.0, 1.0]]).repeat(len(rows), 1)
    ids = [[0, 2, 3, 5][at] for at in edges.values()]
    state = state_of(KNOWN, 6)
    assert sample_reference(logits, draws, state).tokens.tolist() == ids
    assert sampler(library, 6).sample(logits, draws, state).tokens.tolist() == ids


def seed_of(bits: int, position: int) -> int:
    """Return a seed whose random bits at a position are these: SplitMix64, backwards."""
    golden = 0x9E3779B97F4A7C15
    return unmix(unmix(bits << 32) - position * golden)


def unmix(x: int) -> int:
    whole = 2**64
    x = unshift(x % whole, 31)
    x = unshift(x * pow(0x94D049BB133111EB, -1, whole) % whole, 27)
    x = unshift(x * pow(0xBF58476D1CE4E5B9, -1, whole) % whole, 30)
    return (x - 0x9E3779B97F4A7C15) % whole


def unshift(x: int, bits: int) -> int:
    """Undo x ^ x >> bits."""
    once = x ^ x >> bits
    return x ^ (x ^ once >> bits) >> bits


def test_draws_pass_a_chi_square_test() -> None:
    vocabulary, count = 40, 40_000
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(5)) * 1.5
    draws = draws_of([{"temperature": 0.8, "seed": 11}] * count, [(0, 0, p, NO_MASK) for p in range(count)])
    tokens = sample_reference(logits.expand(count, vocabulary), draws, state_of(KNOWN, vocabulary)).tokens
    expected = (logits.double() / 0.8).softmax(0) * count
    is_common = expected > 5
    seen = tokens.bincount(minlength=vocabulary).double()
    observed = torch.cat((seen[is_common], seen[~is_common].sum()[None]))
    wanted = torch.cat((expected[is_common], expected[~is_common].sum()[None]))
    degrees = len(wanted) - 1
    statistic = ((observed - wanted).square() / wanted.clamp(min=1)).sum()
    assert abs(statistic - degrees) < 3.5 * (2 * degrees) ** 0.5


@given(st.integers(0, 2**50), st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_a_fraction_is_exact(total: int, part: int) -> None:
    assert _fraction(torch.tensor([total]), torch.tensor([part])).item() == total * part >> 32
