"""Models with random weights, made where they are needed: no checkpoint lies on a disk."""

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu.rounding import round_weight
from millrace_fit.shard import Cut
from millrace_kernels.linear.format import Format
from millrace_kernels.linear.gpu.choice import Capability
from millrace_kernels.tensor_packer import TensorPacker
from millrace_kernels.weights import Experts, Matrix, Part
from millrace_runtime.models.decoder import find_architecture
from millrace_runtime.models.model import Architecture, Model, Rows


class Family(NamedTuple):
    """A model to compare, and the tiny one that a dry run takes instead."""

    real: Mapping[str, Any]
    dry: Mapping[str, Any]


BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}
LLAMA_8B = BASE | {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
"""The shape of Llama 3 with eight billion weights."""
SMALL_LLAMA = BASE | {
    "vocab_size": 16000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
}
"""Small enough for a CPU to compute the same in float32. Its heads are as wide as a large model's."""
SMALL_QWEN = SMALL_LLAMA | {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 896,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
"""Odd groups, narrow heads, and biases."""
TINY = BASE | {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 1,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
"""For a dry run: Triton's interpreter takes milliseconds for what a GPU does in one program."""
TINY_QWEN = TINY | {"architectures": ["Qwen2ForCausalLM"]}
_QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True}
_MIXTURE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 256,
    "norm_topk_prob": True,
}
_WINDOWED = {"architectures": ["Qwen3ForCausalLM"], "use_sliding_window": True, "max_window_layers": 1}
SMALL_QWEN3, TINY_QWEN3 = SMALL_LLAMA | _QWEN3, TINY | _QWEN3
SMALL_MIXTURE, TINY_MIXTURE = SMALL_LLAMA | _MIXTURE, TINY | _MIXTURE | {"moe_intermediate_size": 32}
SMALL_WINDOWED = SMALL_LLAMA | _WINDOWED | {"sliding_window": 100}
TINY_WINDOWED = TINY | _WINDOWED | {"sliding_window": 10, "num_hidden_layers": 2}
"""Norms of heads; experts; and two KV groups, of which one has a window shorter than the sequences."""
_GEMMA3 = {"architectures": ["Gemma3ForCausalLM"], "tie_word_embeddings": True, "sliding_window_pattern": 2}
SMALL_GEMMA3 = SMALL_LLAMA | _GEMMA3 | {"head_dim": 256, "num_attention_heads": 8, "sliding_window": 100}
TINY_GEMMA3 = TINY | _GEMMA3 | {"sliding_window": 10, "num_hidden_layers": 2}
"""GELU, norms after attention and MLP, and two tables of angles."""
_GPT_OSS = {"architectures": ["GptOssForCausalLM"], "num_local_experts": 16, "num_experts_per_tok": 4}
SMALL_GPT_OSS = SMALL_LLAMA | _GPT_OSS | {"head_dim": 64, "sliding_window": 100, "intermediate_size": 256}
TINY_GPT_OSS = TINY | _GPT_OSS | {"sliding_window": 10, "num_hidden_layers": 2, "intermediate_size": 32}
"""Sinks, and experts with biases and clamped gates."""
QWEN3_8B = LLAMA_8B | {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151936,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
}
QWEN3_30B_A3B = (
    QWEN3_8B
    | _MIXTURE
    | {
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    }
)
"""The shapes of Qwen 3 with eight billion weights, and with thirty of which a token takes three."""


STAND_IN = Capability(9, 0)
"""Of the GPU for which a dry run packs quantised matrices."""


class RandomWeights:
    """Weights by name: the same name has the same numbers on every device that they are then moved to."""

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        made_on: torch.device,
        form: Format | None = None,
        *,
        is_widened: bool = False,
    ) -> None:
        """They are drawn on the device `made_on`. A GPU draws billions in a second, but other ones.

        With a `form` projections are rounded to it as checkpoints are, and then widened if that `is_widened`.
        """
        self.device = device
        self.names: Collection[str] = ()
        capability = STAND_IN if device.type == "cpu" and form is not None else None
        self._packer, self._made_on = TensorPacker(dtype, device, capability=capability), made_on
        self._form, self._is_widened = form, is_widened

    def vector(self, name: str, rows: Rows, *, is_float: bool = False) -> Tensor:
        """Return numbers round one, as a norm's scale has them."""
        drawn = self._draw(f"{name}.weight", (rows.cut.size,))
        return (1 + 0.1 * drawn).to(self.device, torch.float32 if is_float else self._packer.dtype)

    def matrix(self, rows: Mapping[str, Rows], inputs: Cut, *, has_bias: bool = False) -> Matrix:
        """Return projections whose outputs are as large as their inputs."""
        cuts = {name: one.cut for name, one in rows.items()}
        bias = self._biases(cuts) if has_bias else None
        outputs = sum(cut.size for cut in cuts.values())
        parts = self._parts(cuts.items(), inputs.size)
        return self._packer.pack(parts, outputs, inputs.size, bias, self._packed)

    def skip(self, name: str) -> None:
        """Nothing is stored."""

    def skip_copy(self, name: str, original: str) -> None:
        """Nothing is stored."""

    def table(self, name: str, rows: Cut, inputs: int) -> Matrix:
        """Return a table. A head's logits have a spread of two, so that few are nearly equal."""
        return self._packer.pack_table(self._draw(name, (rows.size, inputs)) * (2 * inputs**-0.5))

    head = table

    def gated_matrix(self, gate: str, up: str, rows: Cut, inputs: int, *, has_bias: bool = False) -> Matrix:
        """Return a gate and its product."""
        names = {gate: rows, up: rows}
        bias = self._biases(names) if has_bias else None
        parts = self._parts(names.items(), inputs)
        return self._packer.pack_gated(parts, 2 * rows.size, inputs, bias, self._packed)

    def router(self, name: str, num_experts: int, inputs: int, *, has_bias: bool = False) -> Matrix:
        """Return a router, whose scores have a spread of two."""
        bias = 0.1 * self._draw(f"{name}.bias", (num_experts,)) if has_bias else None
        return self._packer.pack_router(self._draw(name, (num_experts, inputs)) * (2 * inputs**-0.5), bias)

    def experts(self, names: Sequence[str], rows: Rows, inputs: Cut, *, has_bias: bool = False) -> Experts:
        """Return experts' projections."""
        parts, outputs = self._parts(((name, rows.cut) for name in names), inputs.size), rows.cut.size
        bias = self._expert_biases(((name,) for name in names), outputs) if has_bias else None
        return self._packer.pack_experts(parts, len(names), outputs, inputs.size, self._packed, bias=bias)

    def gated_experts(
        self, names: Sequence[tuple[str, str]], rows: Cut, inputs: int, *, has_bias: bool = False
    ) -> Experts:
        """Return experts' gates and their products."""
        parts, outputs = self._parts(((name, rows) for pair in names for name in pair), inputs), 2 * rows.size
        bias = self._expert_biases(names, rows.size) if has_bias else None
        return self._packer.pack_gated_experts(parts, len(names), outputs, inputs, self._packed, bias=bias)

    @property
    def _packed(self) -> Format | None:
        """The form of what is given to the packer."""
        return None if self._is_widened else self._form

    def _parts(self, names: Iterable[tuple[str, Cut]], inputs: int) -> Iterator[Part]:
        for name, rows in names:
            drawn = self._draw(name, (rows.size, inputs)) * inputs**-0.5
            if self._form is None:
                yield drawn
            else:
                rounded = round_weight(drawn, self._form)
                yield rounded.widen() if self._is_widened else rounded

    def _biases(self, names: Mapping[str, Cut]) -> Tensor:
        return torch.cat([0.1 * self._draw(f"{name}.bias", (rows.size,)) for name, rows in names.items()])

    def _expert_biases(self, names: Iterable[tuple[str, ...]], outputs: int) -> Tensor:
        """Return a row for each expert, whose parts have so many outputs each."""
        rows = Cut(outputs, 0, outputs)
        return torch.stack([self._biases(dict.fromkeys(expert, rows)) for expert in names])

    def _draw(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return normal numbers that the name decides. float32 on a CPU, where they are to be exact."""
        dtype = torch.float32 if self._made_on.type == "cpu" else self._packer.dtype
        generator = torch.Generator(self._made_on).manual_seed(zlib.crc32(name.encode()))
        return torch.empty(shape, dtype=dtype, device=self._made_on).normal_(generator=generator)


def build_model(config: Mapping[str, Any], weights: RandomWeights, length: int) -> tuple[Architecture, Model]:
    """Return the architecture, and its model for sequences of up to `length` tokens."""
    architecture = find_architecture(config)
    return architecture, architecture.build(weights, length)
