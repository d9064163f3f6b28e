"""Quantised checkpoints, written from plain ones in the forms in which they are published.

Written by itself, not by the reader's code: each form packs words bit by bit, and says what its numbers mean.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Tensors = dict[str, Tensor]
LINEAR = ("_proj.weight",)
"""The endings of the names of quantised matrices."""
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Quantized:
    """One matrix."""

    tensors: Tensors
    """By the ending of their names."""
    weight: Tensor
    """What they mean, float32 [outputs, inputs]."""


@dataclass(frozen=True)
class Form:
    """A form of checkpoint."""

    config: Mapping[str, Any]
    """`quantization_config`."""
    quantize: Callable[[Tensor], Quantized]


def write_quantized(
    plain: Path, folder: Path, form: Form, left_out: Sequence[str] = (), *, also: tuple[str, ...] = ()
) -> Path:
    """Quantise the projections of a plain checkpoint but some, and return a folder for it.

    `also` has the endings of other matrices' names.

    `folder / "twin"` has the same weights in float32, for those that read no quantised ones.
    """
    config = json.loads((plain / "config.json").read_text())
    stored, twin = {}, {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        if not name.endswith((*LINEAR, *also)) or any(part in name for part in left_out):
            stored[name] = twin[name] = tensor
            continue
        found = form.quantize(tensor)
        twin[name] = found.weight
        stored |= {
            f"{name.removesuffix('weight')}{end}": one.contiguous() for end, one in found.tensors.items()
        }
    for path, tensors, fields in (
        (folder / "twin", twin, {}),
        (folder, stored, {"quantization_config": dict(form.config)}),
    ):
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps(config | fields))
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return folder


def round_groups(weight: Tensor, group: int, levels: tuple[int, int], *, has_zeros: bool) -> Quantized:
    """Round to integers: tensors `q`, `s` in float16 [outputs, groups] and `z`."""
    outputs, inputs = weight.shape
    blocks = weight.reshape(outputs, inputs // group, group)
    low, high = levels
    if has_zeros:
        least, most = blocks.amin(-1).clamp(max=0), blocks.amax(-1).clamp(min=0)
        scale = ((most - least) / (high - low)).clamp(min=1e-5).half()
        zero = (low - least / scale.float()).round().clamp(low, high)
    else:
        scale = (blocks.abs().amax(-1) / high).half()
        zero = torch.zeros_like(scale, dtype=torch.float32)
    wide = scale.float()[..., None]
    safe = torch.where(wide == 0, 1.0, wide)
    q = ((blocks / safe).round() + zero[..., None]).clamp(low, high)
    meant = (q - zero[..., None]) * wide
    tensors = {"q": q.reshape(outputs, inputs).int(), "s": scale, "z": zero.int()}
    return Quantized(tensors, meant.reshape(outputs, inputs))


def pack(numbers: Tensor, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """Return int32 [rows, columns / 8] from numbers of 0 to 15: place i of a word has number `order[i]`."""
    padded = torch.nn.functional.pad(numbers.long(), (0, -numbers.shape[1] % 8))
    words = padded.view(numbers.shape[0], -1, 8)
    total = sum(words[..., number] << (4 * place) for place, number in enumerate(order))
    assert isinstance(total, Tensor)
    return torch.where(total >= 2**31, total - 2**32, total).int()


def _compressed(fmt: str, weights: Mapping[str, Any]) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"dynamic": False, "actorder": None} | dict(weights)}
    return {
        "quant_method": "compressed-tensors",
        "format": fmt,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def compressed_int4(group: int, *, has_zeros: bool = False) -> Form:
    """W4A16 of compressed-tensors."""

    def quantize(weight: Tensor) -> Quantized:
        found = round_groups(weight, group, (-8, 7), has_zeros=has_zeros)
        tensors = {
            "weight_packed": pack(found.tensors["q"] + 8),
            "weight_scale": found.tensors["s"],
            "weight_shape": torch.tensor(weight.shape),
        }
        if has_zeros:
            tensors["weight_zero_point"] = pack((found.tensors["z"] + 8).t()).t()
        return Quantized(tensors, found.weight)

    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": group}
    return Form(_compressed("pack-quantized", weights | {"symmetric": not has_zeros}), quantize)


def compressed_int8() -> Form:
    """W8A8 of compressed-tensors, with dynamic activations."""

    def quantize(weight: Tensor) -> Quantized:
        found = round_groups(weight, weight.shape[1], (-127, 127), has_zeros=False)
        return Quantized(
            {"weight": found.tensors["q"].to(torch.int8), "weight_scale": found.tensors["s"]}, found.weight
        )

    weights = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
    form = Form(_compressed("int-quantized", weights), quantize)
    activations = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
    form.config["config_groups"]["group_0"]["input_activations"] = activations
    return form


def _fp8(weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weight in FP8 and what it means, for a scale that spreads over it."""
    safe = torch.where(scale == 0, 1.0, scale)
    rounded = (weight / safe).clamp(-448, 448).to(torch.float8_e4m3fn)
    return rounded, rounded.float() * scale


def fp8_channels() -> Form:
    """FP8 of compressed-tensors, a scale for each output, with dynamic activations."""

    def quantize(weight: Tensor) -> Quantized:
        scale = (weight.abs().amax(1, keepdim=True) / 448).bfloat16()
        values, meant = _fp8(weight, scale.float())
        return Quantized({"weight": values, "weight_scale": scale}, meant)

    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
    form = Form(_compressed("float-quantized", weights), quantize)
    activations = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}
    form.config["config_groups"]["group_0"]["input_activations"] = activations
    return form


def fp8_static() -> Form:
    """FP8 of vLLM and ModelOpt: one scale, and one of the inputs that a replica does not use."""

    def quantize(weight: Tensor) -> Quantized:
        scale = weight.abs().amax() / 448
        values, meant = _fp8(weight, scale)
        return Quantized({"weight": values, "weight_scale": scale, "input_scale": torch.tensor(0.02)}, meant)

    return Form({"quant_method": "fp8", "activation_scheme": "static"}, quantize)


def fp8_blocks(block: int = 128) -> Form:
    """FP8 in blocks of Qwen3 and DeepSeek."""

    def quantize(weight: Tensor) -> Quantized:
        rows, columns = (-(-size // block) for size in weight.shape)
        scale = torch.empty(rows, columns)
        for row in range(rows):
            for column in range(columns):
                part = weight[row * block : (row + 1) * block, column * block : (column + 1) * block]
                scale[row, column] = part.abs().amax() / 448
        spread = scale.repeat_interleave(block, 0).repeat_interleave(block, 1)
        values, meant = _fp8(weight, spread[: weight.shape[0], : weight.shape[1]])
        return Quantized({"weight": values, "weight_scale_inv": scale}, meant)

    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [block, block]}
    return Form(config | {"modules_to_not_convert": ["lm_head"]}, quantize)


def awq(group: int) -> Form:
    """AWQ's gemm layout."""

    def quantize(weight: Tensor) -> Quantized:
        found = round_groups(weight, group, (0, 15), has_zeros=True)
        tensors = {
            "qweight": pack(found.tensors["q"].t(), AWQ_ORDER),
            "qzeros": pack(found.tensors["z"].t(), AWQ_ORDER),
            "scales": found.tensors["s"].t(),
        }
        return Quantized(tensors, found.weight)

    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    return Form(config, quantize)


def gptq(group: int, *, has_zeros: bool = False, version: str = "gptq", is_ordered: bool = False) -> Form:
    """GPTQ; with an order each group has inputs from everywhere."""

    def quantize(weight: Tensor) -> Quantized:
        inputs = weight.shape[1]
        size = inputs if group == -1 else group
        groups = torch.arange(inputs) // size
        if is_ordered:
            groups = groups[torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))]
        order = torch.argsort(groups, stable=True)
        levels = (0, 15) if has_zeros else (-8, 7)
        found = round_groups(weight[:, order], size, levels, has_zeros=has_zeros)
        back = torch.argsort(order)
        q = found.tensors["q"][:, back] + (0 if has_zeros else 8)
        zero = found.tensors["z"] + (0 if has_zeros else 8) - (1 if version == "gptq" else 0)
        tensors = {
            "qweight": pack(q).t(),
            "qzeros": pack(zero.t() & 15),
            "scales": found.tensors["s"].t(),
            "g_idx": groups.int(),
        }
        return Quantized(tensors, found.weight[:, back])

    config = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": group,
        "sym": not has_zeros,
        "desc_act": is_ordered,
    }
    return Form(config | ({} if version == "gptq" else {"checkpoint_format": version}), quantize)


def with_config(form: Form, **fields: Any) -> Form:
    """Return a form that says something else of itself."""
    return replace(form, config=dict(form.config) | fields)


FORMS: Mapping[str, Form] = {
    "compressed-tensors INT4 in groups of 32": compressed_int4(32),
    "compressed-tensors INT4 with zero points": compressed_int4(64, has_zeros=True),
    "compressed-tensors INT8": compressed_int8(),
    "compressed-tensors FP8 of channels": fp8_channels(),
    "FP8, static": fp8_static(),
    "FP8 in blocks": fp8_blocks(32),
    "AWQ": awq(32),
    "GPTQ": gptq(32),
    "GPTQ with zero points": gptq(32, has_zeros=True),
    "GPTQ of whole rows": gptq(-1),
    "GPTQ of GPTQModel, of both versions": with_config(gptq(32, version="gptq_v2"), checkpoint_format="gptq"),
    "GPTQ v2 with zero points": gptq(64, has_zeros=True, version="gptq_v2"),
    "GPTQ with an order": gptq(32, is_ordered=True),
}
"""By name, for models whose widths are multiples of 64."""
