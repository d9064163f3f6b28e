"""The shapes of models that engines are compared at: their weights, and their config. Pure."""

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

BYTES_PER_VALUE = 2  # bfloat16, weights and KV cache
MAX_LENGTH = 8192


class Family(enum.StrEnum):
    """The `model_type` of a config."""

    LLAMA = "llama"
    QWEN3 = "qwen3"
    QWEN3_MOE = "qwen3_moe"


CLASSES = {
    Family.LLAMA: "LlamaForCausalLM",
    Family.QWEN3: "Qwen3ForCausalLM",
    Family.QWEN3_MOE: "Qwen3MoeForCausalLM",
}
"""The class in transformers, by which peers know a family."""


class Experts(NamedTuple):
    """The mixture of experts in each layer."""

    num: int
    num_chosen: int
    """For each token."""


class Weight(NamedTuple):
    """One tensor of a checkpoint."""

    name: str
    size: tuple[int, ...]
    """Outputs and inputs of a matrix; the values of a norm."""
    share: float = 1.0
    """The part that a decode step of one sequence reads."""


@dataclass(frozen=True)
class Shape:
    """A decoder with rotary positions and grouped heads."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    mlp: int
    """Of each expert, where there are experts."""
    vocabulary: int
    family: Family = Family.LLAMA
    experts: Experts | None = None
    is_tied: bool = True
    """Whether the embedding is the output layer too."""

    @property
    def num_weights(self) -> int:
        """All weights."""
        return sum(math.prod(weight.size) for weight in self.list_weights())

    @property
    def num_read_weights(self) -> float:
        """Weights that a decode step of one sequence reads."""
        return sum(weight.share * math.prod(weight.size) for weight in self.list_weights())

    def count_bytes_per_token(self, num_context_tokens: float) -> float:
        """Return the bytes that a decode step of one sequence must read: its weights and its KV."""
        kv = 2 * self.layers * self.kv_heads * self.head_size * num_context_tokens
        return BYTES_PER_VALUE * (self.num_read_weights + kv)

    def list_weights(self) -> Iterator[Weight]:
        """Yield every tensor, by the name that a checkpoint gives it."""
        embedding = (self.vocabulary, self.hidden)
        yield Weight("model.embed_tokens.weight", embedding, share=float(self.is_tied))
        yield Weight("model.norm.weight", (self.hidden,))
        if not self.is_tied:
            yield Weight("lm_head.weight", embedding)
        for number in range(self.layers):
            layer = f"model.layers.{number}"
            yield from self._list_attention(f"{layer}.self_attn")
            yield from self._list_mlps(f"{layer}.mlp")
            for name in ("input", "post_attention"):
                yield Weight(f"{layer}.{name}_layernorm.weight", (self.hidden,))

    def _list_attention(self, prefix: str) -> Iterator[Weight]:
        heads, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        for name, outputs in (("q", heads), ("k", kv), ("v", kv)):
            yield Weight(f"{prefix}.{name}_proj.weight", (outputs, self.hidden))
        yield Weight(f"{prefix}.o_proj.weight", (self.hidden, heads))
        if self.family is not Family.LLAMA:
            for name in ("q", "k"):
                yield Weight(f"{prefix}.{name}_norm.weight", (self.head_size,))

    def _list_mlps(self, prefix: str) -> Iterator[Weight]:
        if self.experts is None:
            yield from self._list_mlp(prefix, 1.0)
            return
        yield Weight(f"{prefix}.gate.weight", (self.experts.num, self.hidden))
        for number in range(self.experts.num):
            share = self.experts.num_chosen / self.experts.num
            yield from self._list_mlp(f"{prefix}.experts.{number}", share)

    def _list_mlp(self, prefix: str, share: float) -> Iterator[Weight]:
        for name in ("gate", "up"):
            yield Weight(f"{prefix}.{name}_proj.weight", (self.mlp, self.hidden), share)
        yield Weight(f"{prefix}.down_proj.weight", (self.hidden, self.mlp), share)

    def render_config(self) -> dict[str, object]:
        """Return the checkpoint's config."""
        config: dict[str, object] = {
            "architectures": [CLASSES[self.family]],
            "model_type": str(self.family),
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.mlp,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": MAX_LENGTH,
            "rms_norm_eps": 1e-5,
            "rope_theta": 100000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": self.is_tied,
            "torch_dtype": "bfloat16",
            "bos_token_id": 0,
            "eos_token_id": 0,
        }
        if self.family is not Family.LLAMA:
            config |= {"head_dim": self.head_size, "attention_bias": False, "use_sliding_window": False}
        if self.experts is not None:
            config |= {
                "num_experts": self.experts.num,
                "num_experts_per_tok": self.experts.num_chosen,
                "moe_intermediate_size": self.mlp,
                "norm_topk_prob": True,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
            }
        return config


SMALL = Shape(hidden=576, layers=30, heads=9, kv_heads=3, head_size=64, mlp=1536, vocabulary=49152)
"""134.5 million weights: a Llama."""
BILLION = Shape(hidden=2048, layers=16, heads=32, kv_heads=8, head_size=64, mlp=8192, vocabulary=32768)
"""1.04 billion weights, a Llama: two gigabytes, which no cache holds."""
QWEN3 = Shape(
    hidden=1024,
    layers=28,
    heads=16,
    kv_heads=8,
    head_size=128,
    mlp=3072,
    vocabulary=151936,
    family=Family.QWEN3,
)
"""596 million weights: the shape of Qwen3-0.6B."""
MOE = Shape(
    hidden=1024,
    layers=16,
    heads=16,
    kv_heads=4,
    head_size=128,
    mlp=256,
    vocabulary=32768,
    family=Family.QWEN3_MOE,
    experts=Experts(num=32, num_chosen=4),
    is_tied=False,
)
"""554 million weights, 168 million of them read for a token: a small Qwen3-MoE."""
