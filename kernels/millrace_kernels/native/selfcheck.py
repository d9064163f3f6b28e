"""A small case that a library must pass before it serves: one layer, compared with the torch path."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from millrace_kernels.native.abi import Library
from millrace_kernels.native.errors import NativeError
from millrace_kernels.native.packing import NativePacker
from millrace_kernels.native.program import Batch, NativeProgram, Sizes
from millrace_kernels.native.recorder import record
from millrace_kernels.paged_attention.tiled import TiledAttention
from millrace_kernels.select import select_kernels
from millrace_kernels.step import Angles, Format, Heads, Matrix, Packer, Step
from millrace_kernels.tensor_step import TensorPacker, TensorStep

WIDTH, MLP_WIDTH, VOCABULARY, LENGTH, BLOCK_SIZE = 48, 40, 50, 40, 16
HEADS = Heads(num_heads=6, num_kv_heads=2, head_dim=8)
BOUNDS = {
    (torch.float32, Format.DENSE): 1e-4,
    (torch.bfloat16, Format.DENSE): 3e-2,
    (torch.float32, Format.INT8): 3e-2,
    (torch.float32, Format.INT4): 3e-2,
}
"""Of the logits' spread. Whole numbers agree to 1e-6 until one is rounded another way; a wrong lane or block
is off by all of it."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of random weights, and both ends."""

    table: Matrix
    norm: Tensor
    qkv: Matrix
    output: Matrix
    gate_up: Matrix
    down: Matrix
    angles: Angles

    def forward(self, step: Step) -> Tensor:
        """Every operation once."""
        x = step.embed(self.table)
        qkv = step.linear(step.rms_norm(x, self.norm, 1e-5), self.qkv)
        query = step.rotary_kv_write(qkv, 0, HEADS, self.angles)
        x = step.linear_add(step.attention(query, 0, HEADS, HEADS.head_dim**-0.5), self.output, x)
        gated = step.linear_silu_mul(step.rms_norm(x, self.norm, 1e-5), self.gate_up)
        return step.linear_add(gated, self.down, x)

    def logits(self, hidden: Tensor, step: Step) -> Tensor:
        """Scores by the table."""
        return step.logits(step.rms_norm(hidden, self.norm, 1e-5), self.table)


def build_layer(packer: Packer, seed: int = 0) -> Layer:
    """Return the same weights for every packer of one type."""
    generator = torch.Generator().manual_seed(seed)

    def random(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator).mul_(columns**-0.5).to(packer.dtype)

    query, kv = HEADS.num_heads * HEADS.head_dim, HEADS.num_kv_heads * HEADS.head_dim
    turns = torch.rand(LENGTH, HEADS.head_dim // 2, generator=generator) * 6
    return Layer(
        table=packer.pack_table(random(VOCABULARY, WIDTH)),
        norm=random(1, WIDTH)[0] + 1,
        qkv=packer.pack([random(query, WIDTH), random(2 * kv, WIDTH)], query + 2 * kv, WIDTH, None),
        output=packer.pack([random(WIDTH, query)], WIDTH, query, torch.full((WIDTH,), 0.5)),
        gate_up=packer.pack_gated([random(MLP_WIDTH, WIDTH) for _ in "gu"], 2 * MLP_WIDTH, WIDTH, None),
        down=packer.pack([random(WIDTH, MLP_WIDTH)], WIDTH, MLP_WIDTH, None),
        angles=Angles(turns.cos(), turns.sin()),
    )


def check_library(library: Library) -> None:
    """Compare one step of three sequences, in both types and every format. Raises NativeError."""
    for (dtype, form), bound in BOUNDS.items():
        expected, found = _expected(dtype, form), _found(library, dtype, form)
        worst = ((found - expected).abs().max() / expected.std()).item()
        if not worst < bound:
            raise NativeError(
                f"the native kernels are off by {worst:.2g} in a small {form.value} {dtype} case"
            )


COUNTS, SLOTS = [19, 1, 33], [2, 0, 1]
BLOCKS = torch.tensor([[7, 0, 0], [1, 6, 3], [4, 2, 0]])


def _tokens() -> Tensor:
    return torch.randint(0, VOCABULARY, (3, LENGTH), generator=torch.Generator().manual_seed(1))


def _caches(dtype: torch.dtype) -> list[Tensor]:
    shape = (8, 2, HEADS.num_kv_heads, BLOCK_SIZE, HEADS.head_dim)
    flat = torch.full((math.prod(shape) + 64,), float("nan"), dtype=dtype)
    return [flat[:-64].view(shape)]


def _found(library: Library, dtype: torch.dtype, form: Format) -> Tensor:
    layer = build_layer(NativePacker(dtype, form))
    sizes = Sizes(num_tokens=64, num_rows=4, num_threads=2)
    program = NativeProgram(library, record(layer.forward, layer.logits, dtype), _caches(dtype), sizes)
    rows = (np.array(values, dtype=np.int32) for values in (SLOTS, [0] * 3, COUNTS))
    step = program.forward(Batch(*rows), [0, 1, 2], _tokens(), BLOCKS)
    return program.logits(step).clone()


def _expected(dtype: torch.dtype, form: Format) -> Tensor:
    layer = build_layer(TensorPacker(dtype, torch.device("cpu"), form))
    owners = torch.tensor(SLOTS).repeat_interleave(torch.tensor(COUNTS))
    positions = torch.cat([torch.arange(count) for count in COUNTS])
    ends = torch.tensor(COUNTS).cumsum(0)
    step = TensorStep(
        kernels=select_kernels(torch.device("cpu")),
        tokens=_tokens()[owners, positions],
        positions=positions,
        cache_slots=BLOCKS[owners, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE,
        kv_caches=_caches(dtype),
        attend=TiledAttention([0, *ends.tolist()], COUNTS, BLOCKS[SLOTS], HEADS.num_kv_heads, BLOCK_SIZE),
    )
    return layer.logits(layer.forward(step)[ends - 1], step)
