"""quantization_config as real checkpoints have it, by the tool that wrote it."""

from typing import Any

from millrace_fit.headers import StoredTensor
from testing.checkpoints.models import MEDIUM, stored_of

Config = dict[str, Any]


def weights(bits: int, number: str, strategy: str | None, **more: Any) -> Config:
    """As compressed-tensors describes a group's weights."""
    return {
        "num_bits": bits,
        "type": number,
        "strategy": strategy,
        "symmetric": True,
        "dynamic": False,
        **more,
    }


def compressed(
    form: str, described: Config, *, ignore: tuple[str, ...] = ("lm_head",), **more: Any
) -> Config:
    groups = {"group_0": {"targets": ["Linear"], "weights": described, "input_activations": None}}
    named = {"quant_method": "compressed-tensors", "format": form}
    return named | {"config_groups": groups, "ignore": list(ignore), **more}


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
CONFIGS = {
    "fp8 dynamic": FP8_DYNAMIC,
    "fp8 block": FP8_BLOCK,
    "w8a8": W8A8,
    "w4a16": W4A16,
    "awq": AWQ,
    "gptq": GPTQ,
    "modelopt": MODELOPT,
}


def store(quantization: Config, config: Config = MEDIUM) -> dict[str, StoredTensor]:
    """The headers of such a checkpoint: of its matrices in layers, each [outputs, inputs]."""
    tensors = stored_of(config)
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        outputs, inputs = tensors.pop(name).shape
        matrix = name.removesuffix(".weight")
        tensors |= {f"{matrix}.{end}": one for end, one in _store(quantization, outputs, inputs).items()}
    return tensors


def _store(quantization: Config, outputs: int, inputs: int) -> dict[str, StoredTensor]:
    groups, words = -(-inputs // 128), outputs // 8
    match quantization:
        case {"quant_method": "fp8"}:
            scale = StoredTensor("F32", (-(-outputs // 128), groups))
            return {"weight": StoredTensor("F8_E4M3", (outputs, inputs)), "weight_scale_inv": scale}
        case {"quant_method": "modelopt"}:
            scales = {name: StoredTensor("F32", ()) for name in ("weight_scale", "input_scale")}
            return {"weight": StoredTensor("F8_E4M3", (outputs, inputs)), **scales}
        case {"format": "pack-quantized"}:
            return {
                "weight_packed": StoredTensor("I32", (outputs, inputs // 8)),
                "weight_scale": StoredTensor("BF16", (outputs, groups)),
                "weight_shape": StoredTensor("I64", (2,)),
            }
        case {"quant_method": "compressed-tensors", "format": form}:
            dtype = "I8" if form == "int-quantized" else "F8_E4M3"
            scale = StoredTensor("BF16", (outputs, 1))
            return {"weight": StoredTensor(dtype, (outputs, inputs)), "weight_scale": scale}
        case {"quant_method": "awq"}:
            packed = {"qweight": StoredTensor("I32", (inputs, words))}
        case _:
            packed = {"qweight": StoredTensor("I32", (inputs // 8, outputs))}
            packed["g_idx"] = StoredTensor("I32", (inputs,))
    packed["qzeros"] = StoredTensor("I32", (groups, words))
    return packed | {"scales": StoredTensor("F16", (groups, outputs))}
