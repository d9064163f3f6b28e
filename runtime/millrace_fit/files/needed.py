"""The files of a model: which ones a replica needs, and which weights it reads. Names in, names out.

Fetch, size and the replica use these lists, so each refuses the same models and reads the same weights.
"""

from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Final

CONFIG: Final = "config.json"
MODELOPT: Final = "hf_quant_config.json"
"""Where old versions of ModelOpt wrote the `quantization_config` that config.json lacks."""
TOKENIZER: Final = "tokenizer.json"
WHOLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
SMALL_FILES: Final = (
    CONFIG,
    MODELOPT,
    "generation_config.json",
    TOKENIZER,
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
TEMPLATE_FOLDER: Final = "additional_chat_templates"
TOOL_TEMPLATE: Final = f"{TEMPLATE_FOLDER}/tool_use.jinja"
"""The only one of these templates that a replica chooses by its name."""
POINTER_BYTES: Final = 1024
"""A pointer of Git LFS is smaller: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md"""
_POINTER: Final = b"version https://git-lfs.github.com/spec/"
_CONVERTIBLE: Final = ("tokenizer.model", "vocab.json")
"""Tokenizers of which transformers makes a tokenizer.json."""
_TEKKEN: Final = "tekken.json"


def list_small(names: Collection[str]) -> list[str]:
    """Return the files beside the weights that a replica reads, of those that are there."""
    return [name for name in SMALL_FILES if name in names] + sorted(filter(is_template, names))


def is_template(name: str) -> bool:
    """Whether it is one of several chat templates."""
    return fnmatchcase(name, f"{TEMPLATE_FOLDER}/*.jinja")


def is_indexed(names: Collection[str]) -> bool:
    """Whether the index decides which weights are read: as in transformers, not beside model.safetensors."""
    return INDEX in names and WHOLE not in names


def choose_weights(names: Collection[str], shards: Collection[str] | None) -> list[str]:
    """Return the weight files that a replica reads, perhaps none. `shards` are those of the index, or None.

    As in transformers: the usual file, else the index's. Without both all files beside config.json, but for
    the copy in one file that some authors add.
    """
    if WHOLE in names:
        return [WHOLE]
    if shards is not None:
        return sorted(shards)
    beside = sorted(name for name in names if "/" not in name and name.endswith(".safetensors"))
    return [name for name in beside if not name.startswith("consolidated")] or beside


def explain_choice(names: Collection[str]) -> str | None:
    """Return which of two sets of weights is read, in a sentence; None where there is only one."""
    if WHOLE not in names or INDEX not in names:
        return None
    return f"{WHOLE} is read, and not the files of {INDEX} beside it, as in transformers"


def explain_tokenizer(names: Collection[str]) -> str | None:
    """Return why a replica can't use the model's tokenizer, and what to do; None where it can."""
    if TOKENIZER in names:
        return None
    missing = f"there is no {TOKENIZER}, and replicas read no other tokenizer"
    if found := next((name for name in _CONVERTIBLE if name in names), None):
        return (
            f"{missing}. Convert {found} with transformers: "
            f"AutoTokenizer.from_pretrained(folder).save_pretrained(folder) writes {TOKENIZER}"
        )
    if _TEKKEN in names:
        return f"{missing}. {_TEKKEN} is Mistral's own: serve the model in Hugging Face's format"
    return f"{missing}: put the model's own beside {CONFIG}"


def explain_pointer(name: str, start: bytes) -> str | None:
    """Return that a file, by its start, is only a pointer of Git LFS; None where it is not."""
    if not start.startswith(_POINTER):
        return None
    return f"{name} is a pointer of Git LFS and not the file itself: run git lfs pull, and upload it again"
