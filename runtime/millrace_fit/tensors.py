"""The tensors that a Llama-family checkpoint must and may have, as `models/llama.py` reads them.

If not all files were seen, the tensors are those that config.json describes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from millrace_fit.config import FAMILIES, LlamaConfig, find_architecture_name, parse_llama_config
from millrace_fit.dtypes import STORED_TYPES
from millrace_fit.errors import ArchitectureError
from millrace_fit.headers import StoredTensor

Shapes = Iterator[tuple[str, tuple[int, ...]]]
"""Names with shapes."""


def find_fault(config: LlamaConfig, stored: Mapping[str, StoredTensor]) -> str | None:
    """Return why a replica would refuse these tensors, in a sentence; None if it reads all of them."""
    needed = set[str]()
    for name, shape in list_needed(config):  # one by one: config.json may count layers without end
        if fault := _find_fault_of_one(name, shape, stored.get(name)):
            return fault
        needed.add(name)
    left = stored.keys() - needed - set(_list_unread(config))
    if left:
        return (
            f"config.json describes a model without the tensor {min(left)}, one of {len(left)} that would be "
            "left out: use the config.json that came with the weights"
        )
    return None


def _find_fault_of_one(name: str, shape: tuple[int, ...], found: StoredTensor | None) -> str | None:
    if found is None:
        return (
            f"the safetensors files lack the tensor {name}: the model is incomplete, or config.json is of "
            "another one"
        )
    if found.shape != shape:
        return (
            f"the tensor {name} has the shape {list(found.shape)} and config.json asks for {list(shape)}: "
            "use the config.json that came with the weights"
        )
    if found.dtype not in STORED_TYPES:
        return (
            f"the tensor {name} is stored as {found.dtype}, which means nothing without its scales: "
            "quantised checkpoints are not supported yet, so serve the unquantised one"
        )
    return None


def list_needed(config: LlamaConfig) -> Shapes:
    """Yield the tensors that a checkpoint must have, in the order of a model's layers."""
    width = config.width
    yield "model.embed_tokens.weight", (config.vocabulary_size, width)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (width,)
        yield from _list_attention(config, f"{prefix}.self_attn")
        yield f"{prefix}.post_attention_layernorm.weight", (width,)
        yield from _list_mlp(config, f"{prefix}.mlp")
    yield "model.norm.weight", (width,)
    if not config.is_tied:
        yield "lm_head.weight", (config.vocabulary_size, width)


def _list_attention(config: LlamaConfig, prefix: str) -> Shapes:
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    for name, rows in (("q_proj", query), ("k_proj", kv), ("v_proj", kv)):
        yield from _list_linear(f"{prefix}.{name}", rows, config.width, has_bias=config.has_qkv_bias)
    yield from _list_linear(f"{prefix}.o_proj", config.width, query, has_bias=config.has_output_bias)


def _list_mlp(config: LlamaConfig, prefix: str) -> Shapes:
    for name in ("gate_proj", "up_proj"):
        yield from _list_linear(
            f"{prefix}.{name}", config.mlp_width, config.width, has_bias=config.has_mlp_bias
        )
    yield from _list_linear(
        f"{prefix}.down_proj", config.width, config.mlp_width, has_bias=config.has_mlp_bias
    )


def _list_linear(name: str, rows: int, columns: int, *, has_bias: bool) -> Shapes:
    yield f"{name}.weight", (rows, columns)
    if has_bias:
        yield f"{name}.bias", (rows,)


def _list_unread(config: LlamaConfig) -> Iterator[str]:
    """Yield the tensors that a replica skips: a tied head, and old checkpoints' rotary frequencies."""
    if config.is_tied:
        yield "lm_head.weight"
    yield "model.rotary_emb.inv_freq"
    for layer in range(config.num_layers):
        yield f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"


MAX_ASSUMED: Final = 100_000
"""Tensors of ten thousand layers. config.json may have a count that fits into no memory."""


def assume_tensors(
    config: Mapping[str, Any], seen: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor] | None:
    """Return the tensors that were seen, and the others that the model must have.

    For an unsupported model it returns no others. None if the type of the others is unknown.
    """
    try:
        shape = parse_llama_config(config, FAMILIES[find_architecture_name(config)])
    except ArchitectureError:
        return dict(seen)
    stored_type = _choose_type(config, seen)
    if stored_type is None:
        return None
    needed = {
        name: StoredTensor(stored_type, dims) for name, dims in islice(list_needed(shape), MAX_ASSUMED + 1)
    }
    return None if len(needed) > MAX_ASSUMED else needed | dict(seen)


def _choose_type(config: Mapping[str, Any], seen: Mapping[str, StoredTensor]) -> str | None:
    """Return the type of most of the numbers that were seen, else config.json's, by its name in headers."""
    counted = Counter[str]()
    for tensor in seen.values():
        counted[tensor.dtype] += tensor.num_numbers
    named = config.get("dtype") or config.get("torch_dtype")
    of_config = [name for name, dtype in STORED_TYPES.items() if dtype == named]
    most = [name for name, _ in counted.most_common() if name in STORED_TYPES]
    other = ["F32"] if seen else []  # the tensors that were seen have a fault, so the type does not matter
    return next(iter([*most, *of_config, *other]), None)
