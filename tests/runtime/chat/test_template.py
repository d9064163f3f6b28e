from pathlib import Path

import pytest

from millrace_runtime.chat.errors import BrokenTemplateError, TemplateError, TokenizerError
from millrace_runtime.chat.template import ChatTemplate
from millrace_runtime.chat.tokenizer import Tokenizer, read_text_config

USER = [{"role": "user", "content": "<hé>"}]


def test_special_tokens_and_generation_prompt_are_given() -> None:
    source = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{{ add_generation_prompt }}"
    assert ChatTemplate(source, {"bos_token": "<s>"}).render(USER) == "<s><hé>True"


def test_tojson_escapes_nothing_for_html() -> None:
    assert (
        ChatTemplate("{{ messages[0] | tojson }}", {}).render(USER) == '{"role": "user", "content": "<hé>"}'
    )


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ 1 / 0 }}", "division"),
    ],
)
def test_what_a_template_may_not_do_is_an_error(source: str, said: str) -> None:
    with pytest.raises(TemplateError, match=said):
        ChatTemplate(source, {}).render(USER)


def test_a_template_that_does_not_compile_is_an_error() -> None:
    with pytest.raises(BrokenTemplateError, match="compile"):
        ChatTemplate("{% for %}", {})


def test_text_config_reads_lists_dicts_and_template_files(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": {"content": "<s>"}, "eos_token": null}')
    (tmp_path / "chat_template.jinja").write_text("hello")
    config = read_text_config(tmp_path)
    assert config.end_token_ids == (7, 8)
    assert config.special_tokens == {"bos_token": "<s>"}
    assert config.chat_template == "hello"


def test_bad_files_say_which(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json does not exist"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match="can't be loaded"):
        Tokenizer.load(tmp_path)
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(TokenizerError, match=r"config\.json"):
        read_text_config(tmp_path)
