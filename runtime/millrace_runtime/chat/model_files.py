"""Reads a model's text settings: special tokens, end-of-sequence ids, the chat template."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from millrace_runtime.chat.errors import TokenizerError

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class TextConfig:
    """A model's text settings, gathered from its JSON files."""

    special_tokens: dict[str, str]
    """By role (`bos_token`, `eos_token`, …): variables of the chat template."""
    end_token_ids: tuple[int, ...]
    """Ids that end a sequence, from config.json and generation_config.json."""
    chat_templates: dict[str, str]
    """Jinja sources by name: "default", perhaps "tool_use"; empty where the model has none."""


def read_text_config(model_path: Path) -> TextConfig:
    """Read the folder's text settings. Raises TokenizerError for a file that is not JSON."""
    tokenizer_config = _read_object(model_path / "tokenizer_config.json")
    end_token_ids: dict[int, None] = {}
    for name in ("generation_config.json", "config.json"):
        end_token_ids |= dict.fromkeys(_end_ids(_read_object(model_path / name)))
    return TextConfig(
        special_tokens=_special_tokens(model_path, tokenizer_config),
        end_token_ids=tuple(end_token_ids),
        chat_templates=_chat_templates(model_path, tokenizer_config),
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


def _special_tokens(model_path: Path, tokenizer_config: dict[str, Any]) -> dict[str, str]:
    """Return the tokens that transformers 5 gives the chat template, whichever file names them.

    special_tokens_map.json is an older file: it counts, and before the newer one, where that lists no added
    tokens. Besides the seven usual ones a tokenizer may name some of its own.
    """
    named = dict(tokenizer_config)
    if "added_tokens_decoder" not in named:
        named |= _read_object(model_path / "special_tokens_map.json")
    own = {key: value for key, value in named.items() if key.endswith("_token")}
    extra = named.get("extra_special_tokens")
    own |= extra if isinstance(extra, dict) else {}
    texts = {key: _content(value) for key, value in own.items()}
    usual = {key: text for key in _SPECIAL_TOKENS if (text := texts.get(key)) is not None}
    return usual | {key: text for key, text in texts.items() if text is not None}


def _content(value: Any) -> str | None:
    """Return the text of a token that is written as such, or whole with its properties."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _chat_templates(model_path: Path, tokenizer_config: dict[str, Any]) -> dict[str, str]:
    """Return the model's templates by name. Files count before the tokenizer's config, as in transformers."""
    found = {path.stem: path for path in sorted((model_path / "additional_chat_templates").glob("*.jinja"))}
    if (path := model_path / "chat_template.jinja").is_file():
        found["default"] = path
    if found:
        return {name: path.read_text(encoding="utf-8") for name, path in found.items()}
    value = tokenizer_config.get("chat_template")
    if isinstance(value, str):
        return {"default": value}
    items = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    return {
        str(item.get("name")): item["template"] for item in items if isinstance(item.get("template"), str)
    }
