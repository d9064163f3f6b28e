"""What a family declares: its name in config.json, its shape, and its tensors' names in files."""

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from millrace_fit.declaration.layout import Joined
from millrace_fit.fields import Fields
from millrace_fit.modules import Module, Part
from millrace_fit.shape import DecoderShape

Spelling = Mapping[str, str]
"""Other names of the same tensors, as some tools save them: the beginning of a name in files, and the
beginning that the family declares instead."""

FLAT: Final[Spelling] = MappingProxyType(
    {name: f"model.{name}" for name in ("embed_tokens.", "layers.", "norm.")}
)
"""Of a model that was saved without its head, as embedding models are."""


def spell(names: Collection[str], spellings: Iterable[Spelling]) -> dict[str, str]:
    """Return the family's name for each name in files, by the first spelling that fits any of them.

    Names that would meet stay as they are: one of the two tensors would be lost.
    """
    for spelling in spellings:
        beginnings = tuple(spelling)
        if any(name.startswith(beginnings) for name in names):
            spelt = {name: _replace_beginning(name, spelling) for name in names}
            if len(set(spelt.values())) == len(spelt):
                return spelt
    return {name: name for name in names}


def _replace_beginning(name: str, spelling: Spelling) -> str:
    for stored, declared in spelling.items():
        if name.startswith(stored):
            return declared + name.removeprefix(stored)
    return name


Names = Mapping[str, str]
"""By the name of a module's part: the tensor's name in files, without `.weight`."""

LLAMA_NAMES: Final[Names] = MappingProxyType(
    {
        "embedding": "model.embed_tokens",
        "attention_norm": "model.layers.{layer}.input_layernorm",
        "query": "model.layers.{layer}.self_attn.q_proj",
        "key": "model.layers.{layer}.self_attn.k_proj",
        "value": "model.layers.{layer}.self_attn.v_proj",
        "query_norm": "model.layers.{layer}.self_attn.q_norm",
        "key_norm": "model.layers.{layer}.self_attn.k_norm",
        "output": "model.layers.{layer}.self_attn.o_proj",
        "attention_output_norm": "model.layers.{layer}.post_self_attn_layernorm",
        "mlp_norm": "model.layers.{layer}.post_attention_layernorm",
        "mlp_output_norm": "model.layers.{layer}.post_mlp_layernorm",
        "gate": "model.layers.{layer}.mlp.gate_proj",
        "up": "model.layers.{layer}.mlp.up_proj",
        "down": "model.layers.{layer}.mlp.down_proj",
        "router": "model.layers.{layer}.mlp.gate",
        "expert_gate": "model.layers.{layer}.mlp.experts.{expert}.gate_proj",
        "expert_up": "model.layers.{layer}.mlp.experts.{expert}.up_proj",
        "expert_down": "model.layers.{layer}.mlp.experts.{expert}.down_proj",
        "shared_router": "model.layers.{layer}.mlp.shared_expert_gate",
        "shared_gate": "model.layers.{layer}.mlp.shared_expert.gate_proj",
        "shared_up": "model.layers.{layer}.mlp.shared_expert.up_proj",
        "shared_down": "model.layers.{layer}.mlp.shared_expert.down_proj",
        "norm": "model.norm",
        "head": "lm_head",
    }
)
UNREAD: Final = ("model.rotary_emb.inv_freq", "model.layers.{layer}.self_attn.rotary_emb.inv_freq")
"""Old checkpoints' rotary frequencies."""


class Family(NamedTuple):
    """An architecture of config.json."""

    architecture: str
    model_type: str
    """transformers builds a model by it, whatever the architecture is."""
    parse: Callable[[Fields], DecoderShape]
    """Raises ArchitectureError, which names the field."""
    names: Names = LLAMA_NAMES
    spellings: tuple[Spelling, ...] = (FLAT,)
    """The other names that files may have instead."""
    layout: tuple[Joined, ...] = ()
    """Modules of files that have several of the declared parts."""
    unread: tuple[str, ...] = UNREAD
    """Names of tensors that may be stored and are not used."""
    beside: tuple[str, ...] = ()
    """The beginnings of the names of other parts' tensors, such as a vision tower's."""
    text_field: str | None = None
    """The field of config.json that has the text model's config; None: config.json itself has it."""
    text_types: tuple[str, ...] = ()
    """The text model's own `model_type`, any of these."""
    may_be_flat: bool = False
    """Whether config.json itself may have the text model's fields: the published ones of Qwen 2.5 VL do."""
    is_tied_by_text: bool = False
    """Whether `tie_word_embeddings` counts if the text's config alone has true: earlier releases of
    transformers wrote it there, beside a default outside."""
    known: frozenset[str] = frozenset()
    """Fields of `refusals.py` that say what the family is anyway."""


def name_part(names: Names, part: Part, layer: int | None, expert: int | None = None) -> str:
    """Return a tensor's name in files, without `.weight` or `.bias`."""
    return names[part.name].format(layer=layer, expert=expert)


def name_experts(names: Names, module: Module, layer: int | None) -> list[list[str]]:
    """Return the names of a module's parts, for each of its experts."""
    return [
        [name_part(names, part, layer, expert) for part in module.parts] for expert in range(module.count)
    ]
