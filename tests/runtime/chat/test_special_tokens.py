"""Special tokens of the model's files in its chat template, with transformers as oracle."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from millrace_runtime.chat.jobs import RenderChat
from millrace_runtime.chat.template import ChatTemplate
from millrace_runtime.chat.tokenizer import Tokenizer
from testing.text_model import build_byte_level

NAMES = ("bos", "eos", "sep", "cls", "mask", "pad", "unk", "image", "boi", "call", "missing")
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}" + "".join(
    f"|{name}: {{{{ {name}_token }}}}{{% if {name}_token is defined %}}!{{% endif %}}" for name in NAMES
)
FILES: dict[str, dict[str, dict[str, Any]]] = {
    "of the usual names": {
        "tokenizer_config.json": {
            "bos_token": "<s>",
            "sep_token": {"__type": "AddedToken", "content": "<sep>", "lstrip": True},
            "mask_token": "<mask>",
        }
    },
    "of names of its own": {
        "tokenizer_config.json": {
            "image_token": "<image>",
            "extra_special_tokens": {"boi_token": "<boi>", "call_token": "<call>"},
        }
    },
    "in the older file alone": {
        "special_tokens_map.json": {"cls_token": "<cls>", "pad_token": {"content": "<pad>"}}
    },
    "without names": {"tokenizer_config.json": {"extra_special_tokens": ["<one>"]}},
}


@pytest.mark.parametrize("kind", FILES)
def test_a_template_has_every_special_token_by_its_name(tmp_path: Path, kind: str) -> None:
    build_byte_level().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    for name, content in ({"tokenizer_config.json": {}} | FILES[kind]).items():
        (tmp_path / name).write_text(json.dumps(content))
    oracle = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    config = Tokenizer.load(tmp_path).config
    chat = [{"role": "user", "content": "hi"}]
    rendered = ChatTemplate(config.chat_templates, config.special_tokens).render(RenderChat(chat))
    assert rendered == oracle.apply_chat_template(chat, tokenize=False)
    named = [token for file in FILES[kind].values() for token in file if token.endswith("_token")]
    assert all(f"|{token.removesuffix('_token')}: <" in rendered for token in named)
