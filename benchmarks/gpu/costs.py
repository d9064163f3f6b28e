"""What a step must move and multiply at least, by the shape of the model. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from millrace_runtime.protocol.step import StepPlan

BF16_BYTES = 2


@dataclass(frozen=True, slots=True)
class Costs:
    """The numbers of a dense model of Llama's family, in bfloat16."""

    layer_weights: int
    """Of all layers' matrices."""
    head_weights: int
    attended: int
    """Numbers that all query heads of all layers have: each is multiplied with a key's and a value's."""
    kv_numbers: int
    """That a token has in the KV cache, over all layers."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Costs":
        """Return the costs of a config.json."""
        width, layers, head = config["hidden_size"], config["num_hidden_layers"], config["head_dim"]
        query, kv = (config[name] * head for name in ("num_attention_heads", "num_key_value_heads"))
        layer = width * (2 * query + 2 * kv) + 3 * width * config["intermediate_size"]
        return cls(layers * layer, width * config["vocab_size"], layers * query, 2 * layers * kv)

    def step_bytes(self, contexts: Iterable[int]) -> int:
        """Return the least that a decode step reads: each weight, and each sequence's keys and values."""
        return BF16_BYTES * (self.layer_weights + self.head_weights + self.kv_numbers * sum(contexts))

    def flops(self, num_tokens: int, num_pairs: int, num_logits: int) -> int:
        """Return what is multiplied and added. A pair is a token and one that it attends to."""
        products = self.layer_weights * num_tokens + self.head_weights * num_logits
        return 2 * products + 4 * self.attended * num_pairs


class Floor:
    """The least time of a mixed load's steps, added up: the slower of moving and multiplying in each."""

    def __init__(self, costs: Costs, bytes_per_second: float, flops_per_second: float) -> None:
        self._costs = costs
        self._bandwidth, self._rate = bytes_per_second, flops_per_second
        self._computed: dict[int, int] = {}
        """By slot."""
        self.seconds = 0.0

    def add(self, plan: StepPlan) -> None:
        """Count a step."""
        for start in plan.starts:
            self._computed[start.slot] = start.num_computed
        contexts, num_tokens, num_pairs = [], 0, 0
        for row in plan.rows:
            before = self._computed[row.slot]
            self._computed[row.slot] = before + row.num_tokens
            contexts.append(before + row.num_tokens)
            num_tokens += row.num_tokens
            num_pairs += count_pairs(row.num_tokens, before + row.num_tokens)
        if not plan.rows:
            return
        flops = self._costs.flops(num_tokens, num_pairs, sum(row.emit for row in plan.rows))
        moved = self._costs.step_bytes(contexts) / self._bandwidth
        self.seconds += max(moved, flops / self._rate)


def count_pairs(num_queries: int, context: int) -> int:
    """Return how many keys the last `num_queries` tokens of a context see in all: each itself as well."""
    return num_queries * (context - num_queries) + num_queries * (num_queries + 1) // 2
