"""Mixtures of quantised experts on GPUs, interpreted: they compute what the widened experts compute."""

import pytest
import torch
from torch import Tensor

from millrace_kernels.device_kernels import select_kernels, select_triton
from millrace_kernels.exchange.group import Alone
from millrace_kernels.linear.format import Number
from millrace_kernels.linear.gpu.choice import Capability
from millrace_kernels.linear.stored import StoredMatrix
from millrace_kernels.step import Routing, Step
from millrace_kernels.tensor_packer import TensorPacker
from millrace_kernels.tensor_step import TensorStep
from millrace_kernels.weights import Experts, Packer
from testing.stored_matrices import Kind

CPU, HOPPER = torch.device("cpu"), Capability(9, 0)
NUM_EXPERTS, INPUTS, WIDTH = 5, 72, 40
FORMS = {
    "FP8": Kind(Number.FP8),
    "FP8 in blocks": Kind(Number.FP8, 128),
    "INT8": Kind(Number.INT8),
    "INT4": Kind(Number.INT4, 32, has_zeros=True),
    "INT4 in another order": Kind(Number.INT4, 64, has_order=True),
}


def make(kind: Kind, inputs: int, outputs: int) -> list[StoredMatrix]:
    """Return an expert's matrices, one after the other. All have one order of inputs."""
    whole = kind._replace(inputs=inputs, outputs=NUM_EXPERTS * outputs).make()
    return [whole[at * outputs : (at + 1) * outputs] for at in range(NUM_EXPERTS)]


def mix(  # noqa: PLR0917
    x: Tensor, gates: Experts, downs: Experts, step: Step, packer: Packer, limit: float | None = None
) -> Tensor:
    router = torch.randn(NUM_EXPERTS, INPUTS, generator=torch.Generator().manual_seed(0)).to(x.dtype)
    routes = step.route(x, packer.pack_router(router), Routing(2))
    return step.experts_add(step.experts_silu_mul(x, routes, gates, limit), routes, downs, x.clone())


@pytest.mark.parametrize(("rows", "dtype"), [(1, torch.bfloat16), (7, torch.float32), (90, torch.bfloat16)])
@pytest.mark.parametrize("name", FORMS)
def test_quantised_experts_are_the_widened_ones(name: str, rows: int, dtype: torch.dtype) -> None:
    gates, downs = make(FORMS[name], INPUTS, 2 * WIDTH), make(FORMS[name], WIDTH, INPUTS)
    x = torch.randn(rows, INPUTS).to(dtype)
    quantised, wide = TensorPacker(dtype, CPU, capability=HOPPER), TensorPacker(torch.float32, CPU)
    packed = (
        quantised.pack_gated_experts(gates, NUM_EXPERTS, 2 * WIDTH, INPUTS, gates[0].form),
        quantised.pack_experts(downs, NUM_EXPERTS, INPUTS, WIDTH, downs[0].form),
    )
    exact = (
        wide.pack_gated_experts((one.widen() for one in gates), NUM_EXPERTS, 2 * WIDTH, INPUTS),
        wide.pack_experts((one.widen() for one in downs), NUM_EXPERTS, INPUTS, WIDTH),
    )
    found = mix(x, *packed, TensorStep.without_tokens(select_triton(), Alone()), quantised)
    expected = mix(x.float(), *exact, TensorStep.without_tokens(select_kernels(CPU), Alone()), wide)
    assert found.dtype == dtype
    error = (found.float() - expected).norm() / expected.norm()
    assert error < (1e-6 if dtype == torch.float32 else 2e-2)


def test_experts_packed_for_gpus_have_no_product_on_cpus() -> None:
    packer, kind = TensorPacker(torch.float32, CPU, capability=HOPPER), FORMS["FP8"]
    gates = packer.pack_gated_experts(
        make(kind, INPUTS, 2 * WIDTH), NUM_EXPERTS, 2 * WIDTH, INPUTS, kind.make().form
    )
    downs = packer.pack_experts(make(kind, WIDTH, INPUTS), NUM_EXPERTS, INPUTS, WIDTH, kind.make().form)
    step = TensorStep.without_tokens(select_kernels(CPU), Alone())
    with pytest.raises(TypeError, match="experts packed for GPUs"):
        mix(torch.randn(3, INPUTS), gates, downs, step, packer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantised_experts_have_biases_and_clamped_gates(dtype: torch.dtype) -> None:
    kind, x = FORMS["INT4"], torch.randn(20, INPUTS).to(dtype)
    gates, downs = make(kind, INPUTS, 2 * WIDTH), make(kind, WIDTH, INPUTS)
    biases = torch.randn(NUM_EXPERTS, 2 * WIDTH).to(dtype), torch.randn(NUM_EXPERTS, INPUTS).to(dtype)
    quantised, wide = TensorPacker(dtype, CPU, capability=HOPPER), TensorPacker(torch.float32, CPU)
    packed = (
        quantised.pack_gated_experts(gates, NUM_EXPERTS, 2 * WIDTH, INPUTS, gates[0].form, bias=biases[0]),
        quantised.pack_experts(downs, NUM_EXPERTS, INPUTS, WIDTH, downs[0].form, bias=biases[1]),
    )
    exact = (
        wide.pack_gated_experts(
            (one.widen() for one in gates), NUM_EXPERTS, 2 * WIDTH, INPUTS, bias=biases[0]
        ),
        wide.pack_experts((one.widen() for one in downs), NUM_EXPERTS, INPUTS, WIDTH, bias=biases[1]),
    )
    found = mix(x, *packed, TensorStep.without_tokens(select_triton(), Alone()), quantised, 0.7)
    expected = mix(x.float(), *exact, TensorStep.without_tokens(select_kernels(CPU), Alone()), wide, 0.7)
    error = (found.float() - expected).norm() / expected.norm()
    assert error < (1e-6 if dtype == torch.float32 else 2e-2)
