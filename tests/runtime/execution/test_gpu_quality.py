"""What a GPU's products that round inputs add to a checkpoint's own rounding, by their definition."""

from functools import cache, partial

import pytest
from torch import Tensor

from benchmarks import quality
from millrace_kernels.linear.gpu import choice, reference
from millrace_kernels.linear.gpu import product as gpu_product
from millrace_kernels.linear.gpu.choice import Capability, Product
from millrace_kernels.linear.gpu.matrix import GpuMatrix
from millrace_kernels.linear.gpu.reference import gpu_product_reference
from millrace_kernels.tensor_packer import TensorPacker
from testing.checkpoints.quantized import Form, compressed_int8, fp8_channels

NUM_DOCUMENTS = 2


@pytest.mark.parametrize(
    ("form", "product", "most"),
    [(fp8_channels(), Product.SCALED, 0.0005), (compressed_int8(), Product.INTEGERS, 0.0002)],
    ids=["FP8", "INT8"],
)
def test_rounded_inputs_cost_the_shipped_model_little(
    form: Form, product: Product, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bounds are those of the formats on CPUs."""
    chosen = set()

    def multiply(
        x: Tensor, matrix: GpuMatrix, residual: Tensor | None = None, *, wide: bool = False
    ) -> Tensor:
        assert not wide, "a quantised head"
        chosen.add(gpu_product.choose(x, matrix))
        found = gpu_product_reference(x, matrix, product).to(x.dtype)
        return found if residual is None else residual.add_(found)

    hopper = partial(TensorPacker, capability=Capability(9, 0))
    monkeypatch.setattr(reference, "widen_reference", cache(reference.widen_reference))
    monkeypatch.setattr(choice, "FEW_ROWS", 0)  # so many documents would take minutes
    monkeypatch.setattr(gpu_product, "multiply_on_gpu", multiply)
    monkeypatch.setattr(quality, "PUBLISHED", {"GPU": form})
    monkeypatch.setattr(quality, "TensorPacker", hopper)
    (figures,) = quality.measure_published(quality.read_documents(NUM_DOCUMENTS), "torch").values()
    assert chosen == {product}
    assert figures["kl"] <= most
