"""Mixtures of experts: every path computes the definition, and the definition is transformers'."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from millrace_kernels.device_kernels import select_kernels, select_triton
from millrace_kernels.exchange.group import Alone
from millrace_kernels.exchange.memory import Exchange
from millrace_kernels.experts.reference import route_reference
from millrace_kernels.linear.format import Format, Number
from millrace_kernels.native.abi import Library
from millrace_kernels.native.errors import RecordError
from millrace_kernels.native.program import Batch, NativeProgram, Sizes
from millrace_kernels.native.recording.recorder import Recorder, record
from millrace_kernels.native.selfcheck import rounding
from millrace_kernels.native.weights.packing import NativePacker
from millrace_kernels.step import Routes, Routing, Scoring, Step
from millrace_kernels.tensor_packer import TensorPacker
from millrace_kernels.tensor_step import TensorStep
from millrace_kernels.weights import Packer

CPU = torch.device("cpu")
TYPES = [torch.float32, torch.bfloat16]
Rows = Any


class Block:
    """A norm, a router and its experts, the same numbers for every packer; with a limit there are biases."""

    def __init__(self, num_experts: int, inputs: int, width: int, limit: float | None = None) -> None:
        generator = torch.Generator().manual_seed(1)
        self.router = torch.randn(num_experts, inputs, generator=generator) * inputs**-0.5
        self.gates = torch.randn(num_experts, 2, width, inputs, generator=generator) * inputs**-0.5
        self.downs = torch.randn(num_experts, inputs, width, generator=generator) * width**-0.5
        self.limit, has_bias = limit, 0.0 if limit is None else 1.0
        self.router_bias = torch.randn(num_experts, generator=generator) * has_bias
        self.gate_biases = torch.randn(num_experts, 2, width, generator=generator) * has_bias
        self.down_biases = torch.randn(num_experts, inputs, generator=generator) * has_bias

    def add_to(
        self, x: Tensor, packer: Packer, step: Step, routing: Routing, share: slice = slice(None)
    ) -> Tensor:
        """Return x + the mixture of x's norm, by a worker that has a share of each expert's width.

        The first worker adds the biases of the sums.
        """
        dtype, gates, downs = packer.dtype, self.gates[:, :, share], self.downs[:, :, share]
        number, _, width, inputs = gates.shape
        has_bias = self.limit is not None
        router_bias = self.router_bias.to(dtype) if has_bias else None
        gate_bias = self.gate_biases[:, :, share].to(dtype).flatten(1) if has_bias else None
        down_bias = self.down_biases.to(dtype) if has_bias and not share.start else None
        packed = packer.pack_gated_experts(
            gates.to(dtype).flatten(0, 1), number, 2 * width, inputs, bias=gate_bias
        )
        normal = step.rms_norm(x, torch.ones(inputs, dtype=dtype), 1e-6)
        routes = step.route(normal, packer.pack_router(self.router.to(dtype), router_bias), routing)
        h = step.experts_silu_mul(normal, routes, packed, self.limit)
        down = packer.pack_experts(downs.to(dtype), number, inputs, width, bias=down_bias)
        return step.experts_add(h, routes, down, x)

    def exact(self, x: Tensor, routing: Routing) -> Tensor:
        """Return the same in float64, row by row."""
        rows, results = x.double() * (x.double().square().mean(1, keepdim=True) + 1e-6).rsqrt(), []
        for row, scores in zip(rows, rows @ self.router.double().T + self.router_bias.double(), strict=True):
            weights = scores.softmax(0) if routing.scoring is Scoring.SOFTMAX else scores.sigmoid()
            chosen = scores.argsort(descending=True)[: routing.num_chosen]
            total = weights[chosen].sum() if routing.is_normalised else 1
            mixed = torch.zeros_like(row)
            for expert in chosen:
                gate, up = self.gates[expert].double() @ row + self.gate_biases[expert].double()
                down = self.downs[expert].double() @ self._gate(gate, up) + self.down_biases[expert].double()
                mixed += weights[expert] / total * down
            results.append(mixed)
        return x + torch.stack(results)

    def _gate(self, gate: Tensor, up: Tensor) -> Tensor:
        if self.limit is None:
            return functional.silu(gate) * up
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return gate * torch.sigmoid(1.702 * gate) * (up + 1)


CASES = {
    "one of one": (Block(1, 32, 32), 3, Routing(1)),
    "all of all": (Block(4, 48, 32), 2, Routing(4, is_normalised=False)),
    "one of few": (Block(3, 34, 36), 1, Routing(1, Scoring.SIGMOID)),
    "some of many": (Block(20, 48, 36), 17, Routing(5)),
    "by sigmoids": (Block(12, 64, 96), 17, Routing(3, Scoring.SIGMOID, is_normalised=False)),
    "clamped and with biases": (Block(6, 48, 36, limit=0.7), 17, Routing(3)),
    "more rows than are gathered at once": (Block(2, 40, 34), 131, Routing(1)),
}
"""With experts that no row chooses, and widths that are no multiple of a strip or a group."""
BOUNDS = {Format.DENSE: 2e-2, Format.INT8: 4e-2, Format.INT4: 0.2}
STORED = (Format(Number.INT4, 128, has_zeros=True), Format(Number.FP8, 32), Format(Number.FP8))
"""As checkpoints have them."""


def torch_step() -> TensorStep:
    return TensorStep.without_tokens(select_kernels(CPU), Alone())


def triton_step() -> TensorStep:
    return TensorStep.without_tokens(select_triton(), Alone())


@pytest.mark.parametrize("make_step", [torch_step, triton_step])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", list(CASES))
def test_tensors_of_a_mixture(name: str, dtype: torch.dtype, make_step: Callable[[], TensorStep]) -> None:
    block, rows, routing = CASES[name]
    x = torch.randn(rows, block.router.shape[1]).to(dtype)
    found = block.add_to(x.clone(), TensorPacker(dtype, CPU), make_step(), routing)
    bound = 1e-5 if dtype == torch.float32 else 5e-2
    torch.testing.assert_close(found.double(), block.exact(x, routing), rtol=bound, atol=bound)


@pytest.mark.parametrize("form", [*Format.OF_PACKERS, *STORED])
@pytest.mark.parametrize("name", list(CASES))
def test_a_native_mixture(library: Library, native_rows: Rows, name: str, form: Format) -> None:
    block, rows, routing = CASES[name]
    x, packer = torch.randn(rows, block.router.shape[1]), rounding(partial(NativePacker, torch.float32), form)
    found = native_rows(library).run(lambda step, x: block.add_to(x, packer, step, routing), x)
    torchs = rounding(partial(TensorPacker, torch.float32, CPU), form)
    expected = block.add_to(x, torchs, torch_step(), routing)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-2 if form.rounds_inputs else 1e-4)


@pytest.mark.parametrize("form", Format.OF_PACKERS)
@pytest.mark.parametrize("dtype", TYPES)
def test_a_row_has_the_same_bits_in_any_company(
    library: Library, native_rows: Rows, dtype: torch.dtype, form: Format
) -> None:
    """Most rows choose the same expert."""
    block, routing = Block(5, 64, 96), Routing(2)
    x = (torch.randn(120, 64) + 3 * block.router[3]).to(dtype)

    def run_native(x: Tensor, threads: int) -> Tensor:
        packer, rows = NativePacker(dtype, form), native_rows(library, dtype, threads)
        found: Tensor = rows.run(lambda step, x: block.add_to(x, packer, step, routing), x.float())
        return found

    def run_torch(x: Tensor) -> Tensor:
        return block.add_to(x, TensorPacker(dtype, CPU, form), torch_step(), routing)

    crowds = run_native(x, 3), run_torch(x)
    for rows in (slice(0, 1), slice(7, 9), slice(3, 20)):
        assert torch.equal(run_native(x[rows], 2), crowds[0][rows])
        assert torch.equal(run_torch(x[rows]), crowds[1][rows])
    for crowd in crowds:
        overall = (crowd.double() - block.exact(x, routing)).norm() / x.double().norm()
        assert overall < BOUNDS[form]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
def test_the_definition_is_that_of_transformers(family: str) -> None:
    block, x = Block(8, 48, 36), torch.randn(17, 48)
    x *= (x.square().mean(1, keepdim=True) + 1e-6).rsqrt()
    if family == "qwen3_moe":
        from transformers.models.qwen3_moe import modeling_qwen3_moe as qwen  # noqa: PLC0415  seconds

        sizes = {"hidden_size": 48, "moe_intermediate_size": 36, "num_experts": 8, "num_experts_per_tok": 3}
        theirs = qwen.Qwen3MoeSparseMoeBlock(qwen.Qwen3MoeConfig(**sizes, norm_topk_prob=False))
    else:
        from transformers.models.mixtral import modeling_mixtral as mixtral  # noqa: PLC0415

        sizes = {"hidden_size": 48, "intermediate_size": 36, "num_local_experts": 8, "num_experts_per_tok": 3}
        theirs = mixtral.MixtralSparseMoeBlock(mixtral.MixtralConfig(**sizes))
    theirs.gate.weight.data = block.router
    theirs.experts.gate_up_proj.data, theirs.experts.down_proj.data = block.gates.flatten(1, 2), block.downs
    routing = Routing(3, is_normalised=family == "mixtral")
    mine = block.add_to(x, TensorPacker(torch.float32, CPU), torch_step(), routing)
    torch.testing.assert_close(mine - x, theirs(x[None])[0].detach(), rtol=1e-5, atol=1e-5)


def scores_of_faults() -> Tensor:
    """Equal scores, one score above them, NaN, and the lowest."""
    scores = torch.zeros(4, 20)
    scores[0, 7], scores[1], scores[3, 2:] = 1.0, torch.nan, -torch.inf
    return scores


def check_choice(experts: Tensor, weights: Tensor) -> None:
    assert experts[[0, 2, 3]].tolist() == [[0, 1, 7], [0, 1, 2], [0, 1, 2]]
    assert ((experts[1] >= 0) & (experts[1] < 20)).all()
    assert weights[1].isnan().all()
    assert weights[[2, 3]].tolist() == [pytest.approx([1 / 3] * 3), pytest.approx([0.5, 0.5, 0])]


def test_equal_scores_choose_the_first_experts_and_a_row_of_nan_spoils_no_other(
    library: Library, native_rows: Rows
) -> None:
    for choose in (route_reference, select_triton().experts.route):
        choice = choose(scores_of_faults(), Routing(3))
        check_choice(choice.experts, choice.weights)
    packer = NativePacker(torch.float32)

    def route(step: Recorder, x: Tensor) -> Tensor:
        routes: Any = step.route(x, packer.pack_router(torch.eye(20)), Routing(3))
        return routes.name

    # Products with an infinity would be NaN, so the lowest score is a number.
    found = native_rows(library).run(route, scores_of_faults().clamp(min=-1e30))
    check_choice(found[:, :3].int(), found[:, 3:])


@pytest.mark.parametrize("form", Format.OF_PACKERS)
def test_workers_share_the_width_of_each_expert(library: Library, form: Format) -> None:
    block, routing, fd = Block(6, 64, 80), Routing(2), os.memfd_create("test-experts")
    x = torch.randn(17, 64)

    def add_twice(x: Tensor, packer: Packer, step: Step, share: slice = slice(None)) -> Tensor:
        return block.add_to(block.add_to(x, packer, step, routing, share), packer, step, routing, share)

    def run(index: int) -> Tensor:
        packer, share = NativePacker(torch.float32, form), (slice(0, 32), slice(32, 80))[index]
        table = NativePacker(torch.float32).pack([x], 17, 64, None)
        recorded = record(
            lambda step: add_twice(step.embed(table), packer, step, share),
            lambda hidden, _: hidden,
            torch.float32,
            num_workers=2,
        )
        program = NativeProgram(library, recorded, Sizes(17, 17, 1), Exchange(fd, index, 2))
        program.poison()
        numbers, ones = np.arange(17, dtype=np.int32), np.ones(17, dtype=np.int32)
        tokens, batch = torch.arange(17)[:, None].contiguous(), Batch(numbers, 0 * ones, ones)
        return program.run(batch, range(17), tokens, [torch.zeros_like(tokens)]).clone()

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(run, range(2)))
    os.close(fd)
    assert torch.equal(*found)
    alone = add_twice(x, TensorPacker(torch.float32, CPU, form), torch_step())
    torch.testing.assert_close(found[0], alone, rtol=1e-4, atol=1e-4 if form == Format.DENSE else 5e-2)


Record = Callable[[Recorder, NativePacker, Tensor, Routes], Any]
WRONG: dict[str, tuple[Record, str]] = {
    "more experts than there are": (
        lambda step, packer, y, _: step.route(y, packer.pack_router(torch.eye(32)), Routing(33)),
        "a choice of 33 among 32 experts",
    ),
    "experts of another router": (
        lambda step, packer, y, routes: step.experts_silu_mul(y, routes, gated(packer, 5)),
        "5 experts, but their router scores 4",
    ),
    "plain experts gated": (
        lambda step, packer, y, routes: step.experts_silu_mul(y, routes, plain(packer, 4)),
        "experts of pack_gated_experts",
    ),
    "gated experts added": (
        lambda step, packer, y, routes: step.experts_add(y, routes, gated(packer, 4), y),
        "experts of pack_gated_experts",
    ),
    "rows of the wrong width": (
        lambda step, packer, y, routes: step.experts_add(y, routes, plain(packer, 4), y),
        "of 64 are needed, not of torch.float32 of 32, in a product: pass the result of experts_silu_mul",
    ),
}


def gated(packer: NativePacker, number: int) -> Any:
    return packer.pack_gated_experts([torch.eye(32)] * 2 * number, number, 64, 32)


def plain(packer: NativePacker, number: int) -> Any:
    return packer.pack_experts([torch.eye(32)] * number, number, 32, 32)


@pytest.mark.parametrize("form", [Format.DENSE, Format.INT4])
@pytest.mark.parametrize("name", list(WRONG))
def test_experts_that_do_not_fit_are_refused(name: str, form: Format) -> None:
    wrong, text = WRONG[name]
    packer = NativePacker(torch.float32, form)

    def forward(step: Recorder) -> Any:
        y = step.rms_norm(step.embed(packer.pack_table(torch.eye(32))), torch.ones(32), 1e-6)
        return wrong(step, packer, y, step.route(y, packer.pack_router(torch.eye(32)[:4]), Routing(2)))

    with pytest.raises(RecordError, match=text):
        record(forward, lambda hidden, _: hidden, torch.float32)
