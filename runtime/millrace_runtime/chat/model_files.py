"""Reads a model's text settings: special tokens, end-of-sequence ids, the chat template."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from millrace_runtime.chat.errors import TokenizerError

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True)
class TextConfig:
    """A model's text settings, gathered from its JSON files."""

    special_tokens: dict[str, str]
    """By role (`bos_token`, `eos_token`, …): variables of the chat template."""
    end_token_ids: tuple[int, ...]
    """Ids that end a sequence, from config.json and generation_config.json."""
    chat_template: str | None
    """Jinja source; None where the model has none."""


def read_text_config(model_path: Path) -> TextConfig:
    """Read the folder's text settings. Raises TokenizerError for a file that is not JSON."""
    tokenizer_config = _read_object(model_path / "tokenizer_config.json")
    end_token_ids: dict[int, None] = {}
    for name in ("generation_config.json", "config.json"):
        end_token_ids |= dict.fromkeys(_end_ids(_read_object(model_path / name)))
    return TextConfig(
        special_tokens=_special_tokens(tokenizer_config),
        end_token_ids=tuple(end_token_ids),
        chat_template=_chat_template(model_path, tokenizer_config),
    )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise TokenizerError(f"{path} can't be read as a JSON object: {error}") from error


def _end_ids(config: dict[str, Any]) -> list[int]:
    value = config.get("eos_token_id")
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, int)]


def _special_tokens(tokenizer_config: dict[str, Any]) -> dict[str, str]:
    found = {}
    for name in _SPECIAL_TOKENS:
        value = tokenizer_config.get(name)
        if isinstance(value, dict):  # older files write the whole added token
            value = value.get("content")
        if isinstance(value, str):
            found[name] = value
    return found


def _chat_template(model_path: Path, tokenizer_config: dict[str, Any]) -> str | None:
    path = model_path / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    value = tokenizer_config.get("chat_template")
    if isinstance(value, list):  # several named templates: "default" is the one for plain chat
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None
