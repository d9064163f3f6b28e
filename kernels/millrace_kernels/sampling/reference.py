"""Draws and log-probabilities in plain torch: the definition, and the path on CPUs. README.md has the maths.

Every operation on floats is one rounded operation of IEEE 754 in a torch call of its own, so that nothing is
fused; the rest uses integers. So every device and the native kernel draw the same token.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millrace_kernels.sampling.columns import (
    GREATEST_WEIGHT,
    NO_MASK,
    NOT_FINITE,
    NOTHING_ALLOWED,
    WHOLE,
    Draws,
    Sampled,
)
from millrace_kernels.sampling.randomness import random_bits
from millrace_kernels.sampling.state import SlotState, unpack_bias
from millrace_kernels.transfer import upload_all

SERIES = tuple(
    float.fromhex(term)
    for term in (
        "0x1.44138ap-13",
        "0x1.5f0890p-10",
        "0x1.3b2a54p-7",
        "0x1.c6af6cp-5",
        "0x1.ebfbe0p-3",
        "0x1.62e430p-1",
    )
)
"""2^f = 1 + f · …, from the highest power down: fitted at Chebyshev nodes of [-1/2, 1/2], with an error of
1e-8."""


def sample_reference(logits: Tensor, draws: Draws, state: SlotState, masks: Tensor | None = None) -> Sampled:
    """Draw a token for each row of float32 logits [rows, vocabulary], which do not change.

    masks int32 [masks, words] are the step's own, laid out as the fixed ones.
    """
    draws.check(state, masks)
    is_finite = torch.isfinite(logits).all(dim=-1)
    z = torch.where(is_finite[:, None], logits, 0.0)
    _bias(z, draws, state.biases)
    _penalise(z, draws, state.tokens)
    _forbid(z, draws.fixed_mask, state.masks)
    if masks is not None:
        _forbid(z, draws.mask, masks)
    peak = z.amax(dim=-1)
    faults = torch.where(peak == -torch.inf, NOTHING_ALLOWED, 0)
    faults.masked_fill_(~is_finite | (peak == torch.inf), NOT_FINITE)
    z = torch.where((faults == 0)[:, None], z, 0.0)
    tokens = z.argmax(dim=-1)  # documented: the first of equal maxima
    for numbers, is_cut in _random_rows(draws, logits.shape[-1]):
        rows, column = _upload_columns(draws, numbers, z.device)
        drawn = _draw(z.index_select(0, rows), column, is_cut=is_cut)
        is_good = faults.index_select(0, rows) == 0
        tokens.index_copy_(0, rows, torch.where(is_good, drawn, 0))
    return Sampled(torch.stack((tokens, faults)))


def weigh(z: Tensor, inverse_temperatures: Tensor) -> Tensor:
    """Return int64 weights [rows, vocabulary]: e^((z - max) / temperature) in units of 2^-30."""
    below = z - z.amax(dim=-1, keepdim=True)
    y = (below * inverse_temperatures[:, None]).clamp(min=-32.0)
    n = y.round()
    f = y - n
    p = f * SERIES[0]
    for term in SERIES[1:]:
        p = (p + term) * f
    p = p + 1.0
    scale = ((n.int() + (126 + GREATEST_WEIGHT.bit_length())) << 23).view(torch.float32)
    return (p * scale).round().long()


def _random_rows(draws: Draws, vocabulary: int) -> list[tuple[NDArray[np.int64], bool]]:
    """Group the random rows by whether top_k or top_p cuts them."""
    parameters = draws.parameters
    is_random = parameters["inverse_temperature"] > 0
    is_cut = (parameters["share"] < WHOLE) | (parameters["top_k"] > 0) & (parameters["top_k"] < vocabulary)
    groups = [(np.flatnonzero(is_random & (is_cut == cut)), cut) for cut in (False, True)]
    return [(rows, cut) for rows, cut in groups if len(rows)]


def _bias(z: Tensor, draws: Draws, biases: Tensor) -> None:
    """Add, in place, to the logits of the ids that a row's biases name."""
    for row in np.flatnonzero(draws.bias_begin < draws.bias_end).tolist():
        begin, end = int(draws.bias_begin[row]), int(draws.bias_end[row])
        ids, values = unpack_bias(biases[int(draws.slot[row]), begin:end])
        z[row].index_add_(0, ids, values)


def _penalise(z: Tensor, draws: Draws, known_tokens: Tensor) -> None:
    """Change the logits of a sequence's known tokens in place, by repetition, count and presence."""
    for row, (wanted, place) in enumerate(zip(draws.parameters, draws.places.tolist(), strict=True)):
        repetition = float(wanted["repetition"])
        frequency, presence = float(wanted["frequency"]), float(wanted["presence"])
        slot, num_prompt, position = place[:3]
        if repetition != 1:
            z[row] = _repeat_less(z[row], known_tokens[slot, :position], repetition)
        if (frequency or presence) and position > num_prompt:
            counts = _count(known_tokens[slot, num_prompt:position], z.shape[-1])
            z[row] -= torch.where(counts > 0, counts * frequency + presence, 0.0)


def _repeat_less(z: Tensor, known: Tensor, repetition: float) -> Tensor:
    # A tensor: CUDA multiplies by the reciprocal of a number, and that is rounded twice.
    penalty = torch.full_like(z[0], repetition)
    return torch.where(_count(known, len(z)) > 0, torch.where(z > 0, z / penalty, z * penalty), z)


def _count(tokens: Tensor, vocabulary: int) -> Tensor:
    """Return how often each token occurs, float32 [vocabulary].

    A list of the different tokens would be shorter, but its length is known only after a wait for the device.
    """
    ones = torch.ones_like(tokens, dtype=torch.float32)
    return torch.zeros(vocabulary, device=tokens.device).index_add_(0, tokens, ones)


def _forbid(z: Tensor, named: NDArray[np.int64], masks: Tensor) -> None:
    """Set the logits of tokens that a row's mask forbids to -infinity, in place.

    `named` has the number of each row's mask, or NO_MASK.
    """
    bound = np.flatnonzero(named != NO_MASK)
    if not len(bound):
        return
    rows, numbers = upload_all((bound, named[bound]), z.device)
    chosen = masks.index_select(0, numbers)
    bits = chosen[:, :, None] >> torch.arange(32, dtype=torch.int32, device=z.device) & 1
    is_allowed = bits.flatten(1)[:, : z.shape[-1]] != 0
    z.index_copy_(0, rows, z.index_select(0, rows).masked_fill(~is_allowed, -torch.inf))


def _upload_columns(
    draws: Draws, rows: NDArray[np.int64], device: torch.device
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the rows' numbers on the device, and the columns of their parameters and positions."""
    chosen = draws.parameters[rows]
    inverse = np.ascontiguousarray(chosen["inverse_temperature"]).view(np.int32)
    whole = {name: chosen[name].astype(np.int64) for name in ("top_k", "share", "seed", "least")}
    columns = (rows, inverse.astype(np.int64), draws.position[rows], *whole.values())
    numbers, bits, positions, *others = upload_all(columns, device)
    inverse_temperature = bits.to(torch.int32).view(torch.float32)
    named = {"inverse_temperature": inverse_temperature, "position": positions}
    return numbers, named | dict(zip(whole, others, strict=True))


def _draw(z: Tensor, column: Mapping[str, Tensor], *, is_cut: bool) -> Tensor:
    weights = weigh(z, column["inverse_temperature"])
    weights *= weights >= column["least"][:, None]
    if is_cut:
        weights = _cut(z, weights, column["top_k"], column["share"])
    cumulative = weights.cumsum(dim=-1)
    bits = random_bits(column["seed"], column["position"])
    target = _fraction(cumulative[:, -1], bits)
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]


def _cut(z: Tensor, weights: Tensor, top_k: Tensor, share: Tensor) -> Tensor:
    """Keep only the weights of the top_k likeliest tokens, and of these the smallest set reaching top_p."""
    vocabulary = z.shape[-1]
    ids = (z + 0.0).sort(dim=-1, descending=True, stable=True).indices  # -0.0 + 0.0 = 0.0: the zeros tie
    limits = torch.where(top_k > 0, top_k, vocabulary)
    is_within = torch.arange(vocabulary, device=z.device) < limits[:, None]
    ordered = weights.gather(1, ids) * is_within
    upto = ordered.cumsum(dim=-1)
    need = _fraction(upto[:, -1], share).clamp(min=1)
    kept = ordered * (upto - ordered < need[:, None])
    return torch.zeros_like(weights).scatter(1, ids, kept)


def _fraction(totals: Tensor, parts: Tensor) -> Tensor:
    """Return floor(total · part / 2^32) for parts up to 2^32, without leaving int64."""
    return ((totals >> 31) * parts + ((totals & 0x7FFFFFFF) * parts >> 31)) >> 1


class TopLogprobs(NamedTuple):
    """Float32 log-probabilities of some rows: the model's own, before penalties and temperature."""

    drawn: Tensor
    """[rows]: for the drawn tokens"""
    ids: Tensor
    """int [rows, number]: the most likely tokens, the likeliest first; the order of equal ones may differ"""
    values: Tensor
    """[rows, number]: for these tokens"""


def top_logprobs_reference(logits: Tensor, rows: Tensor, tokens: Tensor, number: int) -> TopLogprobs:
    """Return the log-probabilities of some rows of float32 logits [any, vocabulary].

    rows int64 [rows] has their indices; tokens int64 [any] are the drawn tokens of all rows. Returns `number`
    likely tokens, or the whole vocabulary if that is smaller.
    """
    logprobs = logits.index_select(0, rows).log_softmax(dim=-1)
    best = logprobs.topk(min(number, logits.shape[1]))
    drawn = logprobs.gather(1, tokens.index_select(0, rows)[:, None])[:, 0]
    return TopLogprobs(drawn, best.indices, best.values)
