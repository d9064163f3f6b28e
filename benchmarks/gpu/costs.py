"""What a step must move and multiply at least, by the shape of the model. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millrace_runtime.protocol.step import StepPlan

BF16_BYTES = 2


@dataclass(frozen=True, slots=True)
class Costs:
    """The numbers of a model of Llama's family, in bfloat16. All of its layers are alike."""

    layer_weights: int
    """Of all layers' matrices that every token takes."""
    head_weights: int
    attended: int
    """Numbers that all query heads of all layers have: each is multiplied with a key's and a value's."""
    kv_numbers: int
    """That a token has in the KV cache, over all layers."""
    expert_weights: int = 0
    """Of one expert, over all layers."""
    num_experts: int = 0
    num_chosen: int = 0

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Costs":
        """Return the costs of a config.json."""
        width, layers, head = config["hidden_size"], config["num_hidden_layers"], config["head_dim"]
        query, kv = (config[name] * head for name in ("num_attention_heads", "num_key_value_heads"))
        attention, mlp = width * (2 * query + 2 * kv), 3 * width * config["intermediate_size"]
        head_weights, attended, kv_numbers = width * config["vocab_size"], layers * query, 2 * layers * kv
        if "num_experts" not in config:
            return cls(layers * (attention + mlp), head_weights, attended, kv_numbers)
        num_experts, num_chosen = config["num_experts"], config["num_experts_per_tok"]
        shared, expert = attention + width * num_experts, 3 * width * config["moe_intermediate_size"]
        sizes = (head_weights, attended, kv_numbers, layers * expert, num_experts, num_chosen)
        return cls(layers * shared, *sizes)

    def step_bytes(self, contexts: Sequence[int], weight_bytes: float = BF16_BYTES) -> int:
        """Return the least that a decode step reads: each weight, and each sequence's keys and values.

        `weight_bytes` has a weight of the layers. Of experts it is what as many tokens choose on average, if
        they choose at random.
        """
        weights = self.layer_weights + self._count_experts(len(contexts))
        rest = self.head_weights + self.kv_numbers * sum(contexts)
        return round(weight_bytes * weights) + BF16_BYTES * rest

    def _count_experts(self, num_tokens: int) -> float:
        """Return the weights of the experts that at least one of the tokens has chosen."""
        if not self.num_experts:
            return 0.0
        missed = (1 - self.num_chosen / self.num_experts) ** num_tokens
        return self.expert_weights * self.num_experts * (1 - missed)

    def flops(self, num_tokens: int, num_pairs: int, num_logits: int) -> int:
        """Return what is multiplied and added. A pair is a token and one that it attends to."""
        of_token = self.layer_weights + self.num_chosen * self.expert_weights
        products = of_token * num_tokens + self.head_weights * num_logits
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
