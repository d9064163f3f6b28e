"""Reads a model's text settings: special tokens, ends, chat templates, the sampling of its author."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from millrace_runtime.chat.errors import TokenizerError

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


_TOKEN_FIELDS = ("content", "lstrip", "rstrip", "single_word", "normalized", "special")


@dataclass(frozen=True)
class TextConfig:
    """A model's text settings, gathered from its JSON files."""

    special_tokens: dict[str, str]
    """By role (`bos_token`, `eos_token`, …): variables of the chat template."""
    added_tokens: tuple[dict[str, Any], ...]
    """The special tokens, and more that are special too: each with its `content` and how it is split off."""
    end_token_ids: tuple[int, ...]
    """Ids that end a sequence, from config.json and generation_config.json."""
    num_rows: int | None
    """Rows of the model's table of tokens; None where config.json does not say."""
    chat_templates: dict[str, str]
    """Jinja sources by name: "default", perhaps "tool_use"; empty where the model has none."""


GENERATION_CONFIG: Final = "generation_config.json"


class AuthorDefaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sampling that generation_config.json recommends, within the bounds of a request.

    It counts where a request says nothing. As in vLLM, `do_sample` counts for nothing.
    """

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=2)] | None = None
    max_new_tokens: Annotated[int, Meta(ge=1)] | None = None

    def __str__(self) -> str:
        """Return them as a line: "temperature 0.6, top_p 0.95"."""
        return ", ".join(f"{name} {value:g}" for name, value in msgspec.to_builtins(self).items())


NO_DEFAULTS = AuthorDefaults()


def read_text_config(model_path: Path) -> TextConfig:
    """Read the folder's text settings. Raises TokenizerError for a file that is not JSON."""
    tokenizer_config = _read_object(model_path / "tokenizer_config.json")
    end_token_ids: dict[int, None] = {}
    for name in (GENERATION_CONFIG, "config.json"):
        end_token_ids |= dict.fromkeys(_end_ids(_read_object(model_path / name)))
    tokens = _token_settings(model_path, tokenizer_config)
    named = _special_tokens(tokens)
    num_rows = _num_rows(_read_object(model_path / "config.json"))
    return TextConfig(
        special_tokens={name: token["content"] for name, token in named.items()},
        added_tokens=(*_listed_tokens(tokens), *named.values(), *_nameless_tokens(tokens)),
        end_token_ids=tuple(token for token in end_token_ids if 0 <= token < (num_rows or token + 1)),
        num_rows=num_rows,
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
    value = config.get("eos_token_id", _find_inner(config).get("eos_token_id"))
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, int) and not isinstance(item, bool)]


def _num_rows(config: dict[str, Any]) -> int | None:
    size = config.get("vocab_size", _find_inner(config).get("vocab_size"))
    return size if isinstance(size, int) else None


def _find_inner(config: dict[str, Any]) -> dict[str, Any]:
    """Return the text model's config of a model that reads images too."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else {}


def _token_settings(model_path: Path, tokenizer_config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that name special tokens.

    special_tokens_map.json is an older file. It counts only where the newer one lists no added tokens, and
    then before it.
    """
    if "added_tokens_decoder" in tokenizer_config:
        return tokenizer_config
    return tokenizer_config | _read_object(model_path / "special_tokens_map.json")


def _special_tokens(tokens: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tokens that transformers 5 gives the chat template, by role.

    Besides the seven usual ones a tokenizer may name some of its own.
    """
    own = {key: value for key, value in tokens.items() if key.endswith("_token")}
    extra = tokens.get("extra_special_tokens")
    own |= extra if isinstance(extra, dict) else {}
    found = {key: token for key, value in own.items() if (token := _as_token(value)) is not None}
    usual = {key: found[key] for key in _SPECIAL_TOKENS if key in found}
    return usual | found


def _listed_tokens(tokens: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tokens that are listed by id, in that order."""
    listed = tokens.get("added_tokens_decoder")
    by_id = listed if isinstance(listed, dict) else {}
    tokens_by_id = _as_tokens(by_id[number] for number in sorted(by_id, key=int))
    return [{"normalized": True, "special": False} | token for token in tokens_by_id]


def _nameless_tokens(tokens: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the special tokens that have no name."""
    listed = tokens.get("extra_special_tokens") or tokens.get("additional_special_tokens")
    return _as_tokens(listed if isinstance(listed, list) else ())


def _as_tokens(values: Iterable[Any]) -> list[dict[str, Any]]:
    return [token for value in values if (token := _as_token(value)) is not None]


def _as_token(value: Any) -> dict[str, Any] | None:
    """Return a token that is written as its text, or whole with its properties."""
    if isinstance(value, str):
        return {"content": value}
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        return None
    return {key: value[key] for key in _TOKEN_FIELDS if key in value}


def _chat_templates(model_path: Path, tokenizer_config: dict[str, Any]) -> dict[str, str]:
    """Return the model's templates by name. Files count before the tokenizer's config, as in transformers."""
    found = {path.stem: path for path in sorted((model_path / "additional_chat_templates").glob("*.jinja"))}
    if (path := model_path / "chat_template.jinja").is_file():
        found["default"] = path
    if found:
        return {name: path.read_text(encoding="utf-8") for name, path in found.items()}
    # Older processors of models that also read images have a file of their own for it.
    value = _read_object(model_path / "chat_template.json").get("chat_template")
    value = tokenizer_config.get("chat_template") if value is None else value
    if isinstance(value, str):
        return {"default": value}
    items = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    return {
        str(item.get("name")): item["template"] for item in items if isinstance(item.get("template"), str)
    }


def read_author_defaults(model_path: Path) -> AuthorDefaults:
    """Return the defaults in the folder's file; NO_DEFAULTS without one. Raises TokenizerError."""
    path = model_path / GENERATION_CONFIG
    try:
        return msgspec.json.decode(path.read_bytes(), type=AuthorDefaults)
    except FileNotFoundError:
        return NO_DEFAULTS
    except (OSError, msgspec.DecodeError) as error:
        raise TokenizerError(
            f"{path} is no usable generation config: {error}. --generation-config none serves without it"
        ) from error
