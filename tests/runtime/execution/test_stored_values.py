"""Each stored form of a matrix, bit for bit: whole, half of its rows, both halves of its columns, and uneven
thirds.

The words are packed here by the forms' published definitions, not by the reader's code.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from millrace_fit.quantization.methods import read_quantization
from millrace_fit.shard import Cut, whole
from millrace_kernels.linear.stored import StoredMatrix
from millrace_runtime.execution.weights.safetensors_files import Reader
from millrace_runtime.execution.weights.stored_reader import StoredReader

OUTPUTS, INPUTS = 64, 256
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


class Stored(NamedTuple):
    """A matrix in one form."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    weight: Tensor
    """What they mean, float32 [OUTPUTS, INPUTS]."""


def pack(numbers: Tensor, bits: int = 4, order: tuple[int, ...] | None = None) -> Tensor:
    """Put numbers of a row into int32 words, the first into the lowest bits."""
    count = 32 // bits
    words = numbers.long().view(numbers.shape[0], -1, count)
    places = enumerate(order or range(count))
    packed = sum(((words[..., which] << (bits * place)) for place, which in places), torch.tensor(0))
    return torch.where(packed >= 2**31, packed - 2**32, packed).int()


def spread(by_group: Tensor) -> Tensor:
    return by_group.float().repeat_interleave(INPUTS // by_group.shape[1], dim=1)


def draw(group: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return numbers of 4 bits, scales and zero points."""
    torch.manual_seed(group or 1)
    groups = INPUTS // (group or INPUTS)
    numbers, zeros = torch.randint(0, 16, (OUTPUTS, INPUTS)), torch.randint(0, 16, (OUTPUTS, groups))
    return numbers, (torch.rand(OUTPUTS, groups) * 0.02 + 1e-3).half(), zeros


def make_awq(group: int | None) -> Stored:
    numbers, scales, zeros = draw(group)
    tensors = {
        "qweight": pack(numbers.t(), order=AWQ_ORDER),
        "qzeros": pack(zeros.t(), order=AWQ_ORDER),
        "scales": scales.t(),
    }
    config = {"quant_method": "awq", "bits": 4, "group_size": group or -1, "version": "gemm"}
    return Stored(config, tensors, (numbers - spread(zeros)) * spread(scales))


def make_gptq(group: int | None, version: str) -> Stored:
    """The first version stores zero points less one, within four bits."""
    numbers, scales, zeros = draw(group)
    stored = (zeros - int(version == "gptq")) % 16
    order = torch.arange(INPUTS) // (group or INPUTS)
    tensors = {
        "qweight": pack(numbers).t(), "qzeros": pack(stored.t()), "scales": scales.t(), "g_idx": order.int()
    }  # fmt: skip
    config = {"quant_method": "gptq", "bits": 4, "group_size": group or -1, "sym": False}
    return Stored(
        config | {"checkpoint_format": version}, tensors, (numbers - spread(zeros)) * spread(scales)
    )


def describe(**weights: Any) -> dict[str, Any]:
    """As compressed-tensors describes all linear matrices."""
    packed = "pack-quantized" if weights["type"] == "int" else "float-quantized"
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": packed, "config_groups": groups}


def make_int4(group: int | None, *, has_zeros: bool) -> Stored:
    numbers, scales, zeros = draw(group)
    strategy = {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
    tensors = {"weight_packed": pack(numbers), "weight_scale": scales}
    tensors["weight_shape"] = torch.tensor([OUTPUTS, INPUTS])
    if has_zeros:
        tensors["weight_zero_point"] = pack(zeros.t()).t()
    config = describe(num_bits=4, type="int", symmetric=not has_zeros, **strategy)
    return Stored(
        config, tensors, (numbers - (spread(zeros) if has_zeros else torch.tensor(8.0))) * spread(scales)
    )


def make_ordered() -> Stored:
    numbers, scales, zeros = draw(32)
    order = (torch.arange(INPUTS) // 32)[torch.randperm(INPUTS)]
    config = describe(
        num_bits=4, type="int", symmetric=False, strategy="group", group_size=32, actorder="group"
    )
    tensors = {
        "weight_packed": pack(numbers), "weight_scale": scales, "weight_zero_point": pack(zeros.t()).t(),
        "weight_g_idx": order.int(),
    }  # fmt: skip
    return Stored(config, tensors, (numbers - zeros.float()[:, order]) * scales.float()[:, order])


def make_int8() -> Stored:
    torch.manual_seed(8)
    numbers, scales = torch.randint(0, 256, (OUTPUTS, INPUTS)), (torch.rand(OUTPUTS, 1) * 0.02).bfloat16()
    tensors = {"weight_packed": pack(numbers, bits=8), "weight_scale": scales}
    config = describe(num_bits=8, type="int", strategy="channel", symmetric=True)
    return Stored(config, tensors, (numbers.float() - 128) * scales.float())


def make_fp8(config: dict[str, Any], name: str, rows: int, columns: int, *, is_wide: bool = False) -> Stored:
    torch.manual_seed(9)
    values = torch.randn(OUTPUTS, INPUTS).to(torch.float8_e4m3fn)
    scales = torch.rand(-(-OUTPUTS // rows), -(-INPUTS // columns))
    each = scales.repeat_interleave(rows, 0)[:OUTPUTS].repeat_interleave(columns, 1)[:, :INPUTS]
    stored = scales[:, None, :, None] if is_wide else scales
    return Stored(config, {"weight": values, name: stored}, values.float() * each)


BLOCK = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [48, 96]}
FORMS: dict[str, Stored] = {
    **{f"AWQ, {group or 'a row'}": make_awq(group) for group in (None, 32, 128)},
    **{
        f"{version}, {group or 'a row'}": make_gptq(group, version)
        for version in ("gptq", "gptq_v2")
        for group in (None, 32, 128)
    },
    **{
        f"INT4, {group or 'a row'}{', zeros' * has_zeros}": make_int4(group, has_zeros=has_zeros)
        for group in (None, 32, 128)
        for has_zeros in (False, True)
    },
    "INT4 in any order": make_ordered(),
    "INT8, packed": make_int8(),
    "FP8 in blocks of 48x96": make_fp8(describe(**BLOCK), "weight_scale", 48, 96),
    "FP8 in blocks": make_fp8(
        {"quant_method": "fp8", "weight_block_size": [128, 128]}, "weight_scale_inv", 128, 128
    ),
    "FP8 of ModelOpt": make_fp8(
        {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, "weight_scale", 128, 128, is_wide=True
    ),
}  # fmt: skip
CUTS = [
    (whole(OUTPUTS), whole(INPUTS)),
    (Cut(OUTPUTS, OUTPUTS // 2, OUTPUTS), whole(INPUTS)),
    (whole(OUTPUTS), Cut(INPUTS, INPUTS // 2, INPUTS)),
    (whole(OUTPUTS), Cut(INPUTS, 0, INPUTS // 2)),
    # Of three workers, none with a third.
    *((Cut(OUTPUTS, begin, end), whole(INPUTS)) for begin, end in pairwise((0, 24, 40, OUTPUTS))),
    *((whole(OUTPUTS), Cut(INPUTS, begin, end)) for begin, end in pairwise((0, 96, 160, INPUTS))),
]


@pytest.mark.parametrize("name", FORMS)
def test_a_stored_matrix_is_read_as_what_it_means(tmp_path: Path, name: str) -> None:
    config, tensors, weight = FORMS[name]
    stored = {f"m.{ending}": tensor.contiguous() for ending, tensor in tensors.items()}
    save_file(stored, tmp_path / "model.safetensors")
    quantization = read_quantization({"quantization_config": config})
    cuts = [cut for cut in CUTS if name != "INT4 in any order" or cut[1] == whole(INPUTS)]
    for rows, columns in cuts:  # workers can't share columns in any order
        reader = Reader(tmp_path)
        read = StoredReader(reader, quantization).read("m", rows, columns)
        assert isinstance(read, StoredMatrix)
        assert torch.equal(read.widen(), weight[rows.begin : rows.end, columns.begin : columns.end])
        reader.check_all_read()
