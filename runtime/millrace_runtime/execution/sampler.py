"""From logits to tokens. A row's outcome depends on its own logits, parameters and position only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from millrace_runtime.execution.randomness import to_signed, uniform
from millrace_runtime.protocol.sampling import Sampling


class Draw(NamedTuple):
    """What a row's draw needs beside its logits."""

    sampling: Sampling
    position: int
    """Index in the sequence that the drawn token gets."""
    slot: int
    num_prompt: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """A step's draws, still on the device."""

    tokens: Tensor
    """int64 [rows]"""
    is_finite: Tensor
    """bool [rows]: False where the logits were not finite and the token means nothing."""
    logprobs: Tensor | None
    """float32 [rows, vocabulary], before penalties and temperature; None where no row asked."""


def sample(
    logits: Tensor, draws: Sequence[Draw], known_tokens: Tensor, allowed: Tensor | None = None
) -> Drawn:
    """Draw a token for each row of float32 logits [rows, vocabulary].

    known_tokens [slots, length] holds each slot's tokens, which the penalties count. allowed, bool [rows,
    vocabulary], is what may be drawn; the token of a row that allows nothing means nothing.
    """
    is_finite = torch.isfinite(logits).all(dim=-1)
    logits = torch.where(is_finite[:, None], logits, 0.0)
    wants_logprobs = any(draw.sampling.num_logprobs is not None for draw in draws)
    logprobs = logits.log_softmax(dim=-1) if wants_logprobs else None
    _penalise(logits, draws, known_tokens)
    if allowed is not None:
        logits.masked_fill_(~allowed & allowed.any(dim=-1, keepdim=True), float("-inf"))
    tokens = logits.argmax(dim=-1)  # documented: the first of equal maxima
    for rows, is_cut in _random_rows(draws):
        chosen = [draws[row] for row in rows]
        draw = _draw_cut if is_cut else _draw_plain
        tokens[rows] = draw(_scale(logits[rows], chosen), chosen)
    return Drawn(tokens, is_finite, logprobs)


def _random_rows(draws: Sequence[Draw]) -> list[tuple[list[int], bool]]:
    """Group the rows that are not greedy by whether top_k or top_p cuts them."""
    groups: dict[bool, list[int]] = {}
    for row, draw in enumerate(draws):
        sampling = draw.sampling
        if sampling.temperature > 0:
            is_cut = sampling.top_k > 0 or sampling.top_p < 1
            groups.setdefault(is_cut, []).append(row)
    return [(rows, is_cut) for is_cut, rows in groups.items()]


def _penalise(logits: Tensor, draws: Sequence[Draw], known_tokens: Tensor) -> None:
    """Lower what a sequence generated before, by its count and by its presence; in place."""
    for row, draw in enumerate(draws):
        frequency, presence = draw.sampling.frequency_penalty, draw.sampling.presence_penalty
        if not (frequency or presence) or draw.position <= draw.num_prompt:
            continue
        generated = known_tokens[draw.slot, draw.num_prompt : draw.position]
        tokens, counts = torch.unique(generated, return_counts=True)
        logits[row, tokens] -= frequency * counts + presence


def _scale(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Divide by the temperature; from the maximum down, so that a tiny one gives -inf, not NaN."""
    temperatures = torch.tensor([draw.sampling.temperature for draw in draws], dtype=torch.float32)
    below = logits - logits.amax(dim=-1, keepdim=True)
    return below / temperatures.clamp(min=1e-6).to(logits.device)[:, None]


def _draw_plain(scaled: Tensor, draws: Sequence[Draw]) -> Tensor:
    return _invert(scaled.softmax(dim=-1), draws)


def _draw_cut(scaled: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Draw from the top_k most likely, of these from the smallest set that reaches top_p."""
    vocabulary = scaled.shape[-1]
    ordered, ids = scaled.sort(dim=-1, descending=True, stable=True)
    limits = torch.tensor([draw.sampling.top_k or vocabulary for draw in draws], device=scaled.device)
    ranks = torch.arange(vocabulary, device=scaled.device)
    ordered = ordered.masked_fill(ranks >= limits[:, None], float("-inf"))
    probabilities = ordered.softmax(dim=-1)
    shares = torch.tensor([draw.sampling.top_p for draw in draws], dtype=torch.float64).to(scaled.device)
    before = probabilities.double().cumsum(dim=-1) - probabilities
    is_kept = (before < shares[:, None]) | (ranks == 0)
    place = _invert(probabilities * is_kept, draws)
    return ids.gather(1, place[:, None])[:, 0]


def _invert(weights: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Return for each row the first column whose cumulative weight exceeds uniform * total."""
    seeds = torch.tensor([to_signed(draw.sampling.seed) for draw in draws])
    positions = torch.tensor([draw.position for draw in draws])
    cumulative = weights.double().cumsum(dim=-1)
    target = uniform(seeds, positions).to(weights.device)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(max=weights.shape[-1] - 1)
