"""Fields of a body: which are honoured, ignored, or refused by name."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai.types import completion_create_params as texts
from openai.types.chat import completion_create_params as chats
from openai.types.responses import response_create_params as responses

from millrace_runtime.api.errors import ApiError, BadRequestError
from millrace_runtime.api.request.openai import read_chat
from millrace_runtime.api.request.openai_bodies import (
    ChatBody,
    CompletionBody,
    GenerationBody,
    Harmless,
    Unsupported,
)
from millrace_runtime.api.request.responses.body import Ignored, ResponsesBody
from millrace_runtime.api.request.structured_outputs import GrammarFields
from millrace_runtime.api.request.unsupported_fields import refuse_unsupported
from millrace_runtime.contract import REJECTED_LOAD
from tests.runtime.api.served import REPLY, Served
from tests.runtime.api.test_failures import HI, assert_conserved

INERT = {
    "tools": [],
    "response_format": {"type": "text"},
    "user": "u",
    "store": False,
    "metadata": {"a": "b"},
    "service_tier": "auto",
    "request_id": "r",
    "priority": 0,
    "min_tokens": 0,
    "n": None,
    "skip_special_tokens": True,
    "include_stop_str_in_output": False,
    "bad_words": [],
    "length_penalty": 1.0,
    "verbosity": "low",
    "guided_decoding_backend": "xgrammar",
    "stream_interval": 4,
    "session_id": "s",
    "thinking_token_budget": -1,
    "truncation_side": "left",
    "modalities": ["text"],
    "web_search_options": None,
    "audio": None,
    "logit_bias": None,
    "echo": False,
    "allowed_token_ids": None,
    "return_token_ids": False,
    "stream_options": {"include_usage": False, "continuous_usage_stats": False},
}


async def test_harmless_fields_and_values_that_ask_for_nothing_are_accepted(served: Served) -> None:
    chat = {"messages": HI, "max_tokens": 1, "add_special_tokens": False, "reasoning_effort": "none"}
    chat |= {"logprobs": False, "top_logprobs": 0, "prompt_cache_options": {"mode": "implicit"}}
    answer = await served.client.post("/v1/chat/completions", json=chat | INERT)
    assert answer.status_code == 200, answer.text
    completion = {"prompt": "a", "max_tokens": 1, "add_special_tokens": True}
    answer = await served.client.post("/v1/completions", json=completion | INERT)
    assert answer.status_code == 200, answer.text


async def test_options_of_a_stream_ask_for_what_they_say(served: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": False, "include_obfuscation": False}
    chunks = await served.openai.chat.completions.create(
        model="tiny", messages=HI, stream=True, stream_options=options
    )
    assert [chunk.usage async for chunk in chunks][-1] is not None
    for options in ({}, None, {"include_usage": None}):
        answer = await served.client.post("/v1/completions", json={"prompt": "a", "stream_options": options})
        assert answer.status_code == 200


def list_own(*types: type[msgspec.Struct]) -> set[str]:
    return {name for kind in types for name in kind.__annotations__}


def why_refused(body: GenerationBody) -> str | None:
    try:
        return refuse_unsupported(body)
    except BadRequestError as error:
        return str(error)


NEVER = list_own(Unsupported) - list_own(ChatBody, CompletionBody)
KNOWN_ONLY_HERE = {"kv_transfer_params", "ec_transfer_params", "vllm_xargs"}
"""Fields for extensions of vLLM's server: nothing does the same."""


@pytest.mark.parametrize(
    ("published", "body"),
    [
        (chats.CompletionCreateParamsStreaming, ChatBody(messages=[])),
        (texts.CompletionCreateParamsStreaming, CompletionBody(prompt="a")),
        (responses.ResponseCreateParamsStreaming, ResponsesBody(input="a")),
    ],
)
def test_each_field_of_openais_is_supported_or_ignored_or_refused_with_a_hint(
    published: Any, body: GenerationBody | ResponsesBody
) -> None:
    others = (GenerationBody, Harmless, GrammarFields) if isinstance(body, GenerationBody) else (Ignored,)
    for name in published.__annotations__:
        if name not in list_own(type(body), *others):
            assert isinstance(body, GenerationBody), name
            said = why_refused(msgspec.structs.replace(body, **{name: "x"}))
            assert said, name
            assert not said.endswith("leave it out"), name


def test_the_page_has_each_field_that_is_refused_or_ignored() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "requests.md").read_text()
    text = page.split("## What is refused")[1].split("\n## ")[0]
    table, ignored = text.split("Ignored, because")
    in_table = {
        name for line in table.splitlines() if line[:3] == "| `" for name in words(line.split("|")[1])
    }
    assert in_table == NEVER
    assert list_own(Harmless) == set(words(ignored))
    for name in NEVER - KNOWN_ONLY_HERE:
        said = why_refused(CompletionBody(prompt="a", **{name: "x"}))
        assert said, name
        assert "leave it out" not in said, name


def words(text: str) -> list[str]:
    return re.findall(r"`(\w+)`", text)


async def test_an_answer_of_openais_may_be_sent_back_as_a_message(served: Served) -> None:
    said = (await served.openai.chat.completions.create(model="tiny", messages=HI)).choices[0].message
    again = await served.openai.chat.completions.create(model="tiny", messages=[*HI, said, *HI])
    assert again.choices[0].message.content == REPLY
    dumped = said.model_dump() | {"annotations": [], "audio": None}
    await served.openai.chat.completions.create(model="tiny", messages=[*HI, dumped, *HI])


async def test_what_openais_client_made_of_an_answer_may_be_sent_back(served: Served) -> None:
    chats = served.openai.chat.completions
    async with chats.stream(model="tiny", messages=HI) as stream:
        streamed = (await stream.get_final_completion()).choices[0].message
    parsed = (await chats.parse(model="tiny", messages=HI)).choices[0].message
    for said in (streamed, parsed):
        for spelled in (said, said.model_dump(), said.model_dump(exclude_unset=True)):
            again = await chats.create(model="tiny", messages=[*HI, spelled, *HI])
            assert again.choices[0].message.content == REPLY


ASKING = {
    "length_penalty": 2.0,
    "logits_processors": ["x"],
    "functions": [{"name": "f"}],
    "thinking_token_budget": 100,
    "moderation": {"model": "x"},
}
UNKNOWN = {
    "regex": "a+",
    "json_schema": "{}",
    "grammar": "root",
    "ebnf": "x",
    "num_beams": 4,
    "typical_p": 0.5,
    "mirostat": 2,
    "repeat_penalty": 2.0,
    "max_new_tokens": 3,
    "reasoning_format": "none",
    "x" * 64: None,
}


async def test_fields_that_would_change_the_answer_are_never_ignored(served: Served) -> None:
    for path, body in (("completions", {"prompt": "a"}), ("chat/completions", {"messages": HI})):
        for fields, code in ((ASKING, "unsupported_parameter"), (UNKNOWN, "unknown_parameter")):
            for name, value in fields.items():
                answer = await served.client.post(f"/v1/{path}", json=body | {name: value})
                error = answer.json()["error"]
                assert (answer.status_code, error["code"], error["param"]) == (400, code, name)
                assert f"`{name}` is not" in error["message"]
    assert served.engine.seen == []
    await assert_conserved(served)


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (r"cut \ud83d here", "cut \ufffd here"),
        (r"cut\uDE00", "cut\ufffd"),
        (r"\ud83d\uD83D\ude00\ude00 \u00e9\ud83d", "\ufffd😀\ufffd é\ufffd"),
        (r"\\ud83d \\\ud83d", "\\ud83d \\\ufffd"),
    ],
)
def test_half_a_surrogate_is_a_replacement_character(escaped: str, text: str) -> None:
    """JavaScript writes it of a text that was cut inside an emoji, and an agent sends it in each turn."""
    body = f'{{"messages": [{{"role": "user", "content": "{escaped}"}}]}}'
    for encoded in (body.encode(), bytearray(body.encode()), b"\xef\xbb\xbf" + body.encode()):
        assert read_chat(encoded).prompts.messages[0]["content"] == text  # type: ignore[union-attr]


@pytest.mark.parametrize("text", [r"\ud83", r"\ud83d \x", "\\ud83d\n", '\\ud83d"'])
def test_what_is_no_json_is_refused_with_half_a_surrogate_too(text: str) -> None:
    with pytest.raises(BadRequestError, match="not JSON that can be read"):
        read_chat(f'{{"messages": [{{"role": "user", "content": "{text}"}}]}}'.encode())


def test_of_many_byte_order_marks_one_is_skipped() -> None:
    """To skip each and try again took 7 s of the event loop for 128 KiB."""
    with pytest.raises(BadRequestError, match="not JSON that can be read"):
        read_chat(b"\xef\xbb\xbf" * 40_000 + b"{}")


@pytest.mark.parametrize("fields", ['"max_tokens": 512.0', '"max_tokens": 5.12e2, "seed": 1.0, "top_k": 4e1'])
def test_a_whole_number_may_be_written_as_one_with_a_point(fields: str) -> None:
    request = read_chat(b'{"messages": [{"role": "user", "content": "a"}], %b}' % fields.encode()).request
    assert (request.max_tokens, request.seed) == (512, 1 if "seed" in fields else None)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ('"max_tokens": 512.5', "got `float` - in `max_tokens`"),
        ('"max_tokens": 512.0, "n": 1.5', "got `float` - in `n`"),
        ('"max_tokens": 1e300', "Expected `int` <= 2147483647"),
        ('"max_tokens": "512"', "got `str` - in `max_tokens`"),
        ('"max_tokens": true', "got `bool` - in `max_tokens`"),
        (
            '"reasoning_effort": "auto"',
            "send one of `high`, `low`, `max`, `medium`, `minimal`, `none`, `xhigh`",
        ),
        ('"reasoning": {"effort": "auto"}', "send one of `high`, `low`"),
        ('"response_format": {"type": "xml"}', "send one of `json_object`, `json_schema`, `text`"),
    ],
)
def test_a_value_that_is_refused_says_what_may_be_sent(fields: str, said: str) -> None:
    with pytest.raises(BadRequestError, match=re.escape(said)):
        read_chat(b'{"messages": [{"role": "user", "content": "a"}], %b}' % fields.encode())


async def test_numbers_of_any_size_are_bounded(served: Served) -> None:
    for field in ({"stop_token_ids": [10**23]}, {"stop_token_ids": [2**31]}, {"prompt": [2**31]},
                  {"prompt": [[1], [10**23]]}, {"prompt": [-1]}):  # fmt: skip
        answer = await served.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1} | field)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"].partition("[")[0]) == (400, next(iter(field)))


def test_what_is_refused_for_the_clients_fault_is_no_load() -> None:
    """The autoscaler counts a refusal as load by its reason."""
    reasons = {kind.reason for kind in ApiError.__subclasses__() if kind is not BadRequestError}
    assert reasons == set(REJECTED_LOAD)
