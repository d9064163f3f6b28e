"""quantization_config as real checkpoints have it, by the tool that wrote it."""

from collections.abc import Mapping
from typing import Any

from millrace_fit.files.headers import StoredTensor
from millrace_fit.tensors import assume_tensors
from testing.checkpoints.models import MEDIUM

Config = dict[str, Any]
Tensors = dict[str, StoredTensor]
SMALL: dict[str, Any] = MEDIUM | {"intermediate_size": 704, "vocab_size": 1003}
EXPERTS: dict[str, Any] = SMALL | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "intermediate_size": 768,
    "mlp_only_layers": [1],
}


def weights(bits: int, number: str, strategy: str | None, **more: Any) -> Config:
    """As compressed-tensors describes a group's weights."""
    described = {"num_bits": bits, "type": number, "strategy": strategy}
    return described | {"symmetric": True, "dynamic": False, **more}


def compressed(
    form: str,
    described: Config,
    *,
    ignore: tuple[str, ...] = ("lm_head",),
    inputs: Config | None = None,
) -> Config:
    groups = {"group_0": {"targets": ["Linear"], "weights": described, "input_activations": inputs}}
    named = {"quant_method": "compressed-tensors", "format": form}
    return named | {"config_groups": groups, "ignore": list(ignore)}


FP8_DYNAMIC = compressed("float-quantized", weights(8, "float", "channel"))
FP8_BLOCK = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}
W8A8 = compressed("int-quantized", weights(8, "int", "channel"))
W4A16 = compressed("pack-quantized", weights(4, "int", "group", group_size=128, actorder="weight"))
AWQ = {"bits": 4, "group_size": 128, "quant_method": "awq", "version": "gemm", "zero_point": True}
GPTQ = {"bits": 4, "group_size": 128, "quant_method": "gptq", "desc_act": False, "sym": True}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}
CONFIGS = (FP8_DYNAMIC, FP8_BLOCK, W8A8, W4A16, AWQ, GPTQ, MODELOPT)


def quantise(config: Mapping[str, Any], quantization: Mapping[str, Any]) -> tuple[dict[str, Any], Tensors]:
    changed = {**config, "quantization_config": quantization}
    return changed, assume_tensors(changed, {}) or {}
