"""What no kernel computes is refused while it is written down, and not misread at the first step."""

from collections.abc import Callable

import pytest
import torch

from millrace_kernels.linear.format import Format
from millrace_kernels.native.errors import RecordError
from millrace_kernels.native.recording.record import Record
from millrace_kernels.native.recording.recorder import Recorder, record
from millrace_kernels.native.weights.packing import NativePacker
from millrace_kernels.step import Angles, CacheLayer, HeadNorms, Heads

WIDTH = 64
HEADS = Heads(num_heads=4, num_kv_heads=2, head_dim=16)
ANGLES = Angles(torch.zeros(2, 5, 8))


class Weights:
    """One of each, for rows of 64."""

    def __init__(self, dtype: torch.dtype, form: Format) -> None:
        packer = NativePacker(dtype, form)
        self.table = packer.pack_table(torch.randn(10, WIDTH))
        self.norm = torch.ones(WIDTH, dtype=dtype)
        self.square = packer.pack([torch.randn(WIDTH, WIDTH)], WIDTH, WIDTH, None)
        self.wide = packer.pack([torch.randn(WIDTH, 2 * WIDTH)], WIDTH, 2 * WIDTH, None)
        self.tall = packer.pack([torch.randn(2 * WIDTH, WIDTH)], 2 * WIDTH, WIDTH, None)
        self.wide_table = packer.pack_table(torch.randn(10, 2 * WIDTH))
        self.gated = packer.pack_gated([torch.randn(WIDTH, WIDTH)] * 2, 2 * WIDTH, WIDTH, None)


Forward = Callable[[Recorder, Weights, torch.Tensor, torch.Tensor], torch.Tensor]
"""Given the step, weights, a residual and its normalised rows."""


def turn(step: Recorder, weights: "Weights", y: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return step.rotary_kv_write(step.linear(y, weights.tall), CacheLayer(0), HEADS, Angles(table))


def normalise(step: Recorder, weights: "Weights", y: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    norms = HeadNorms(torch.ones(16, dtype=y.dtype), key, 1e-5)
    return step.rotary_kv_write(step.linear(y, weights.tall), CacheLayer(0), HEADS, None, norms)


WRONG: dict[str, tuple[Forward, str]] = {
    "a product normalised": (
        lambda step, w, _, y: step.rms_norm(step.linear(y, w.square), w.norm, 1e-5),
        r"float32 of 64 are needed, not of torch.bfloat16 of 64, in rms_norm: pass the result of embed",
    ),
    "a residual that is none": (
        lambda step, w, _, y: step.linear_add(step.linear(y, w.square), w.square, y),
        "linear_add's residual: pass the result of embed, linear_add, linear_sum, experts_add or add",
    ),
    "an added residual that is none": (
        lambda step, _, x, y: step.add(x, y),
        "add's residual: pass the result of embed, linear_add, linear_sum, experts_add or add",
    ),
    "a residual multiplied": (
        lambda step, w, x, _: step.linear(x, w.square),
        r"bfloat16 of 64 are needed, not of torch.float32 of 64, in a product: pass the result of rms_norm",
    ),
    "a residual turned": (
        lambda step, w, _, y: step.rotary_kv_write(
            step.linear_add(y, w.tall, step.embed(w.wide_table)), CacheLayer(0), HEADS, ANGLES
        ),
        r"bfloat16 of 128 are needed, not of torch.float32 of 128, in rotary_kv_write: pass the result",
    ),
}
WRONG_IN_ANY_TYPE: dict[str, tuple[Forward, str]] = {
    "another width multiplied": (lambda step, w, _, y: step.linear(y, w.wide), "of 128 are needed"),
    "another width normalised": (
        lambda step, w, x, _: step.rms_norm(x, torch.ones(32, dtype=w.norm.dtype), 1e-5),
        "of 32 are needed",
    ),
    "a residual of another width": (
        lambda step, w, x, y: step.linear_add(y, w.tall, x),
        "of 128 are needed, not of torch.float32 of 64",
    ),
    "another width added": (
        lambda step, w, x, y: step.add(step.linear(y, w.tall), x),
        "of 128 are needed, not of torch.float32 of 64, in add's residual",
    ),
    "a residual used after a sum": (
        lambda step, w, x, y: (step.add(y, x), step.rms_norm(x, w.norm, 1e-5))[1],
        "a tensor can't be used: no operation of the step made it",
    ),
    "queries of another width": (
        lambda step, w, _, y: step.attention(step.linear(y, w.tall), CacheLayer(0), HEADS, 1.0),
        "attention: pass the result of rotary_kv_write",
    ),
    "a row too narrow for queries, keys and values": (
        lambda step, w, _, y: step.rotary_kv_write(step.linear(y, w.square), CacheLayer(0), HEADS, ANGLES),
        "of 128 are needed, not of torch.* of 64, in rotary_kv_write",
    ),
    "angles for half of a head": (
        lambda step, w, _, y: turn(step, w, y, torch.zeros(2, 5, 4)),
        r"angles of float32 \[2, positions, 8\] are needed, not of torch.float32 \[2, 5, 4\]",
    ),
    "angles in bfloat16": (
        lambda step, w, _, y: turn(step, w, y, torch.zeros(2, 5, 8, dtype=torch.bfloat16)),
        "not of torch.bfloat16",
    ),
    "angles that lie apart": (
        lambda step, w, _, y: turn(step, w, y, torch.zeros(2, 8, 5).transpose(1, 2)),
        "must be contiguous",
    ),
    "norms of another width": (
        lambda step, w, _, y: normalise(step, w, y, torch.ones(8, dtype=w.norm.dtype)),
        r"norms of torch.* \[16\] are needed, not of torch.* \[8\]",
    ),
    "norms of another type": (
        lambda step, w, _, y: normalise(step, w, y, torch.ones(16, dtype=torch.float16)),
        "not of torch.float16",
    ),
    "norms that lie apart": (
        lambda step, w, _, y: normalise(step, w, y, torch.ones(16, 2, dtype=w.norm.dtype)[:, 1]),
        "norms must be contiguous",
    ),
    "a gated matrix as it is": (lambda step, w, _, y: step.linear(y, w.gated), "pack it the other way"),
    "a gated matrix added": (lambda step, w, x, y: step.linear_add(y, w.gated, x), "pack it the other way"),
    "a plain matrix gated": (lambda step, w, _, y: step.linear_silu_mul(y, w.tall), "pack it the other way"),
    "an embedding out of a gated matrix": (lambda step, w, *_: step.embed(w.gated), "pack it the other way"),
    "a head that is gated": (lambda step, w, _, y: step.logits(y, w.gated), "pack it the other way"),
}


def write_down(forward: Forward, dtype: torch.dtype, form: Format) -> Record:
    weights = Weights(dtype, form)

    def begin(step: Recorder) -> torch.Tensor:
        x = step.embed(weights.table)
        return forward(step, weights, x, step.rms_norm(x, weights.norm, 1e-5))

    return record(begin, lambda hidden, _: hidden, dtype)


@pytest.mark.parametrize("name", list(WRONG))
def test_rows_of_another_type_are_refused(name: str) -> None:
    forward, text = WRONG[name]
    with pytest.raises(RecordError, match=text):
        write_down(forward, torch.bfloat16, Format.DENSE)


@pytest.mark.parametrize("form", Format.OF_PACKERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", list(WRONG_IN_ANY_TYPE))
def test_rows_and_matrices_that_do_not_fit_are_refused(name: str, dtype: torch.dtype, form: Format) -> None:
    forward, text = WRONG_IN_ANY_TYPE[name]
    with pytest.raises(RecordError, match=text):
        write_down(forward, dtype, form)


def test_rounded_matrices_take_rows_of_either_type() -> None:
    written = write_down(lambda step, w, x, _: step.linear(x, w.square), torch.bfloat16, Format.INT8)
    assert len(written.operations) == 5


Logits = Callable[[Recorder, Weights, torch.Tensor, torch.Tensor], torch.Tensor]
"""Given the step, weights, a residual of the rows that draw, and one of all tokens."""

WRONG_IN_LOGITS: dict[str, tuple[Logits, str]] = {
    "all tokens normalised": (
        lambda step, w, _, before: step.rms_norm(before, w.norm, 1e-5),
        "older than the choice of the rows that draw",
    ),
    "a residual of all tokens": (
        lambda step, w, x, before: step.linear_add(step.rms_norm(x, w.norm, 1e-5), w.square, before),
        "older than the choice of the rows that draw",
    ),
    "tokens embedded": (lambda step, w, *_: step.embed(w.table), "EMBED has rows for all tokens"),
    "what draws turned": (
        lambda step, w, x, _: turn(step, w, step.rms_norm(x, w.norm, 1e-5), ANGLES.table),
        "ROTARY_KV_WRITE has rows for all tokens",
    ),
    "what draws attending": (
        lambda step, w, x, _: step.attention(step.rms_norm(x, w.norm, 1e-5), CacheLayer(0), HEADS, 1.0),
        "ATTENTION has rows for all tokens",
    ),
}


@pytest.mark.parametrize("name", list(WRONG_IN_LOGITS))
def test_logits_are_of_the_rows_that_draw_alone(name: str) -> None:
    logits, text = WRONG_IN_LOGITS[name]
    weights, before = Weights(torch.float32, Format.DENSE), []

    def begin(step: Recorder) -> torch.Tensor:
        before.append(step.embed(weights.table))
        return step.embed(weights.table)

    with pytest.raises(RecordError, match=text):
        record(begin, lambda hidden, step: logits(step, weights, hidden, before[0]), torch.float32)
