"""What `millrace size` shows of some models: golden/screens.txt, in one file.

After a change of words, `python -m tests.fit.screens` writes that file anew: its diff shows each sentence.
"""

from pathlib import Path
from typing import Any

from millrace_fit.accelerators import COMMON, GIB, GPUS, Accelerator
from millrace_fit.facts import find_facts
from millrace_fit.screen import Model, render_overview, render_screen
from millrace_fit.settings import Settings
from millrace_fit.tensors import assume_tensors
from testing.checkpoints.models import LLAMA_8B, LLAMA_70B, QWEN_HALF, stored_of
from tests.fit.quantized import AWQ, FP8_BLOCK, MODELOPT

GEMMA3_4B: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
    "dtype": "bfloat16",
}
"""Its published fields: the others have the defaults of its class."""
EXPECTED = Path(__file__).with_name("golden") / "screens.txt"
MODELS: dict[str, dict[str, Any]] = {
    "llama-8b": LLAMA_8B,
    "llama-70b": LLAMA_70B,
    "qwen-half": QWEN_HALF,
    "gemma": LLAMA_8B | {"architectures": ["Gemma2ForCausalLM"]},
    "fp8": LLAMA_8B | {"quantization_config": FP8_BLOCK},
    "awq": LLAMA_8B | {"quantization_config": AWQ},
    "nvfp4": LLAMA_8B | {"quantization_config": MODELOPT | {"quant_algo": "NVFP4"}},
    "mistral": LLAMA_8B
    | {"architectures": ["MistralForCausalLM"], "sliding_window": 4096, "rope_scaling": None},
    "gemma-3": GEMMA3_4B,
}
CASES: dict[str, tuple[str, Settings, str]] = {
    "fits": ("llama-8b", Settings(), "h100-80g"),
    "fits, for all that were asked for": (
        "llama-8b",
        Settings(max_model_length=4096, max_sequences=64),
        "h100-80g",
    ),
    "shorter sequences": ("llama-8b", Settings(), "l4-24g"),
    "fewer sequences": ("llama-8b", Settings(max_model_length=8192, max_sequences=64), "l4-24g"),
    "a length without room": ("llama-8b", Settings(max_model_length=131072), "l4-24g"),
    "weights without room": ("llama-70b", Settings(), "h100-80g"),
    "on several": ("llama-70b", Settings(tensor_parallel=4), "h100-80g"),
    "heads that can't be shared": ("qwen-half", Settings(tensor_parallel=4), "l4-24g"),
    "a part of a GPU": ("llama-8b", Settings(), "1g.10gb"),
    "parts of GPUs": ("llama-8b", Settings(tensor_parallel=2), "3g.40gb"),
    "an old GPU": ("qwen-half", Settings(), "t4-16g"),
    "another maker": ("qwen-half", Settings(), "mi300x-192g"),
    "rounded on a GPU": ("qwen-half", Settings(weights="Int8"), "l4-24g"),
    "a pod": ("qwen-half", Settings(device="cpu"), "4 GiB"),
    "a pod that is too small": ("llama-8b", Settings(device="cpu", max_model_length=8192), "16 GiB"),
    "a pod for rounded weights": (
        "llama-8b",
        Settings(device="cpu", max_model_length=8192, weights="Int4"),
        "16 GiB",
    ),
    "a pod for none": ("llama-70b", Settings(device="cpu", weights="Int4"), "16 GiB"),
    "another architecture": ("gemma", Settings(), "h100-80g"),
    "a checkpoint in 8 bits": ("fp8", Settings(tensor_parallel=2), "h100-80g"),
    "a checkpoint in 4 bits": ("awq", Settings(device="cpu", max_model_length=8192), "6 GiB"),
    "one to be rounded again": ("awq", Settings(device="cpu", weights="Int8"), "6 GiB"),
    "one in a format without a reader": ("nvfp4", Settings(), "h100-80g"),
    "a sliding window": ("mistral", Settings(), "h100-80g"),
    "windows in five of six layers": ("gemma-3", Settings(), "l4-24g"),
    "longer than the model": ("llama-8b", Settings(max_model_length=200000), "h100-80g"),
    "too few tokens a step": ("llama-8b", Settings(max_batched_tokens=64), "h100-80g"),
}


def make(name: str) -> Model:
    raw = MODELS[name]
    stored = assume_tensors(raw, {}) or stored_of(raw)
    return Model(f"hf://org/{name}", "0e9e39f249a16976918f6564b8830bc894c89659", find_facts(raw, stored))


def find(name: str) -> Accelerator:
    if name in GPUS:
        return GPUS[name]
    return Accelerator("a pod on CPUs", int(name.removesuffix(" GiB")) * GIB, device="cpu")


def render() -> str:
    common = [GPUS[name] for name in COMMON]
    parts = [[f"## {name}", *render_overview(make(name), Settings(), common)] for name in MODELS]
    for title, (name, settings, device) in CASES.items():
        parts.append([f"## {title}", *render_screen(make(name), settings, find(device))])
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


if __name__ == "__main__":
    EXPECTED.write_text(render())
