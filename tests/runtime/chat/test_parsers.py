"""What answers are split into, for each format, wherever the text is cut."""

import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_runtime.chat.jobs import RenderChat
from millrace_runtime.chat.parsers.answer import AnswerDelta, AnswerParser, TextDelta, join_deltas
from millrace_runtime.chat.parsers.json_value import is_object
from millrace_runtime.chat.parsers.registry import (
    HARMONY,
    REASONING_MARKERS,
    TOOL_FORMATS,
    choose_reasoning_format,
    choose_tool_format,
    list_markers,
    open_parser,
)
from millrace_runtime.chat.template import ChatTemplate
from tests.runtime.chat.answers import (
    ANSWERS,
    BEGUN,
    FORMATS,
    HERMES,
    HOSTILE,
    KIMI,
    NO_CALLS,
    PARTS,
    THOUGHTS,
    TOOLS,
    write_messages,
    write_values,
)

TEMPLATES = {path.stem: path.read_text() for path in Path(__file__).with_name("templates").glob("*.jinja")}


def open_for(tool_format: str | None, *, begins_inside: bool | None = None) -> AnswerParser:
    """The parser; `begins_inside` None is for a model that does not reason."""
    reasoning_format = HARMONY if tool_format == HARMONY else "think"
    return open_parser(
        tool_format,
        None if begins_inside is None else reasoning_format,
        begins_in_reasoning=bool(begins_inside),
        tools=TOOLS,
    )


def split(parser: AnswerParser, pieces: Iterable[str]) -> AnswerDelta:
    return join_deltas([*map(parser.feed, pieces), parser.finish()])


def read_texts(answer: AnswerDelta) -> tuple[str, str]:
    assert answer.calls == ()
    return answer.reasoning, answer.content


def list_calls(answer: AnswerDelta) -> list[tuple[str | None, str]]:
    assert [call.index for call in answer.calls] == list(range(len(answer.calls)))
    return [(call.name, call.arguments) for call in answer.calls]


@pytest.mark.parametrize(("tool_format", "text", "content", "calls"), ANSWERS)
def test_an_answer_is_split(tool_format: str | None, text: str, content: str, calls: list[Any]) -> None:
    for pieces in ([text], text):  # whole, and letter by letter
        answer = split(open_for(tool_format), pieces)
        assert (answer.content, list_calls(answer)) == (content, calls)


@pytest.mark.parametrize("tool_format", NO_CALLS)
def test_what_is_no_call_is_content(tool_format: str) -> None:
    for text in NO_CALLS[tool_format]:
        assert split(open_for(tool_format), text) == AnswerDelta((TextDelta("content", text),))


@pytest.mark.parametrize(("text", "begins_inside", "reasoning", "content"), THOUGHTS)
def test_reasoning_is_split_off(text: str, *, begins_inside: bool, reasoning: str, content: str) -> None:
    for pieces in ([text], text):
        answer = split(open_for(None, begins_inside=begins_inside), pieces)
        assert (answer.reasoning, answer.content, answer.calls) == (reasoning, content, ())


@pytest.mark.parametrize("tool_format", sorted({*TOOL_FORMATS} - {HARMONY}))
def test_a_call_in_the_reasoning_counts_if_nothing_follows(tool_format: str) -> None:
    """A model that writes its call there ends its answer: else nothing would be left of it."""
    call = next(
        text.removesuffix("Done.").strip()
        for name, text, _, calls in ANSWERS
        if name == tool_format and calls and all(is_object(written) for _, written in calls)
    )
    answer = split(open_for(tool_format), call)
    said, calls = answer.content, list_calls(answer)
    known = [one for one in calls if one[0] == "f"]
    begun, behind = f"Hm.\n{call.strip()}", "\n</think>\n\n"
    for text, reasoning, content, found in (
        (begun, begun, "", known),
        (f"{begun}{behind}", begun, "", known),
        (f"{begun}{behind}Hi", begun, "Hi", []),  # a draft
        (f"{begun}\nSo I", f"{begun}\nSo I", "", []),  # another one, cut behind it
        (f"{begun}{behind}{call}", begun, said, calls),  # once
    ):
        for pieces in ([text], text):
            answer = split(open_for(tool_format, begins_inside=True), pieces)
            assert (answer.reasoning, answer.content) == (reasoning, content)
            assert list_calls(answer) == found


@pytest.mark.parametrize("call", [HERMES[:-16], HERMES.replace('"f"', '"unknown"')])
def test_no_other_call_in_the_reasoning_counts(call: str) -> None:
    answer = split(open_for("hermes", begins_inside=True), call)
    assert (answer.reasoning, answer.content, answer.calls) == (call, "", ())


def test_text_and_calls_keep_their_order_within_a_piece() -> None:
    parts = open_for("hermes", begins_inside=True).feed(f"Hm.</think>a {HERMES}b {HERMES}c").parts
    call = ("f", '{"a": 1}', None)
    assert parts == (
        ("reasoning", "Hm."), ("content", "a "), (0, *call), ("content", "b "), (1, *call), ("content", "c"),
    )  # fmt: skip


def test_channels_are_reasoning_and_content() -> None:
    text = write_messages("analysis<|message|>Hm.", "analysis<|message|>So.", "final<|message|>Hi")
    for pieces in ([text], text):
        assert read_texts(split(open_for(HARMONY, begins_inside=False), pieces)) == ("Hm.\nSo.", "Hi")
        assert read_texts(split(open_for(HARMONY), pieces)) == ("", "Hm.\nSo.\nHi")


@pytest.mark.parametrize("reasoning_format", REASONING_MARKERS)
def test_reasoning_has_the_markers_of_its_format(reasoning_format: str) -> None:
    opening, closing = REASONING_MARKERS[reasoning_format]
    parser = open_parser("gemma4", reasoning_format)
    assert read_texts(split(parser, f"{opening}\nHm.\n{closing}Hi")) == ("Hm.", "Hi")
    shown = list_markers(None, reasoning_format)
    assert all(any(marker.startswith(text) for text in shown) for marker in (opening, closing))


@pytest.mark.parametrize(
    ("reasoning_format", "text", "reasoning", "content"),
    [
        ("granite", "Here's my thought process:\nHm.\n\nHere's my response:\nHi", "Hm.", "Hi"),
        ("granite", "\nHere is my thought process: A\nHere is my response", " A\nHere is my response", ""),
        ("granite", "Here is my response: Hi", "", "Here is my response: Hi"),
        ("think_response", "<think>Hm.</think>\n<response>\nHi\n\nyou\n</response>\n", "Hm.", "Hi\n\nyou"),
        ("think_response", "<think>Hm.</think> <response>Hi\n", "Hm.", "Hi\n"),
        ("think_response", "<think></think>Hi</response>", "", "Hi</response>"),
        ("think_response", "<response>a</response>", "", "<response>a</response>"),
        (
            "think_response",
            "<think></think><response>`</response>` ends it.\n</response> \n",
            "",
            "`</response>` ends it.",
        ),
        ("think_response", "<think></think><response>a\n</response>\n\n</response>", "", "a\n</response>"),
        ("think_response", "<resp", "", "<resp"),
    ],
)
def test_phrases_and_tags_tell_the_reasoning(
    reasoning_format: str, text: str, reasoning: str, content: str
) -> None:
    for pieces in ([text], text):
        assert read_texts(split(open_parser("hermes", reasoning_format), pieces)) == (reasoning, content)


def test_a_call_stands_between_the_tags_of_an_answer() -> None:
    for pieces in ([text := f"<think>Hm.</think><response>\nSo: {HERMES}\n</response>"], text):
        answer = split(open_parser("hermes", "think_response", tools=TOOLS), pieces)
        assert (answer.reasoning, answer.content, list_calls(answer)) == ("Hm.", "So: ", [("f", '{"a": 1}')])


def test_a_call_has_the_id_that_the_model_gave_it() -> None:
    [call] = split(open_for("kimi_k2"), KIMI).calls
    assert call.call_id == "functions.f:3"


def test_what_is_certain_is_not_held_back() -> None:
    parser = open_for("hermes", begins_inside=True)
    assert [parser.feed(text).reasoning for text in ("a\n", "b</th", "ink>\n")] == ["a", "\nb", ""]
    assert [parser.feed(text).content for text in ("c <", "to", "x")] == ["c ", "", "<tox"]
    call = ('<tool_call>{"name": "f", "argu', 'ments": {"', "a", '": 1}')
    calls = [[piece[:3] for piece in parser.feed(text).calls] for text in call]
    assert calls == [[], [(0, "f", '{"')], [(0, None, "a")], [(0, None, '": 1}')]]
    coder = open_for("qwen3_coder")
    coder.feed("<function=f>\n<parameter=text>\n")
    assert [coder.feed(text).calls[0].arguments for text in ("a\n", "b\n</par")] == ["a", r"\nb"]
    llama = open_for("llama3")
    assert llama.feed('{"name": "Ann", "age":').content == '{"name": "Ann", "age":'


@given(st.lists(PARTS, max_size=6).map("".join), st.sampled_from(FORMATS), st.data())
def test_no_cut_changes_the_sum(text: str, tool_format: str | None, data: st.DataObject) -> None:
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)))
    pieces = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    for begins_inside in (None, False, True):
        whole, cut, letters = (
            split(open_for(tool_format, begins_inside=begins_inside), some) for some in ([text], pieces, text)
        )
        assert whole == cut == letters


@given(st.lists(PARTS, max_size=6).map("".join))
def test_an_answer_without_calls_loses_nothing(text: str) -> None:
    for tool_format in FORMATS:
        answer = split(open_for(tool_format), [text])
        assert answer.calls or answer.content == text or tool_format == HARMONY


@given(st.lists(PARTS, max_size=6).map("".join))
def test_messages_lose_their_heads_alone(text: str) -> None:
    """All letters are content, reasoning, arguments, or a head, whose only text is these."""
    answer = split(open_for(HARMONY, begins_inside=False), [text])
    kept = answer.reasoning + answer.content + "".join(call.arguments for call in answer.calls)
    for mark in (
        *list_markers(HARMONY, None),
        "commentary",
        "final",
        "analysis",
        "json",
        " to=functions.f",
        " to=f",
        " to=g",
    ):
        text = text.replace(mark, "")
    assert Counter(kept) >= Counter(text.replace("\n", "").replace("assistant", "").replace(" ", ""))


def count_steps(tool_format: str, pieces: list[str]) -> int:
    """Lines of the parsers that run."""
    steps = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps
        steps += event == "line"
        return trace if "chat/parsers" in frame.f_code.co_filename else None

    before = sys.gettrace()
    parser = open_for(tool_format, begins_inside=False)
    sys.settrace(trace)
    try:
        split(parser, pieces)
    finally:
        sys.settrace(before)
    return steps


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_work_grows_with_the_text_alone(tool_format: str) -> None:
    for unit in HOSTILE[tool_format]:
        small, large = (unit * (size // len(unit)) for size in (600, 1200))
        assert count_steps(tool_format, list(large)) < 2.2 * count_steps(tool_format, list(small))
        assert count_steps(tool_format, [large]) < 40 * len(large)


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_a_megabyte_of_half_markers_is_not_held(tool_format: str) -> None:
    for prefix in ("", *BEGUN):
        parser = open_for(tool_format)
        parser.feed(prefix)
        whole = join_deltas([parser.feed("<" * 4096) for _ in range(256)])
        size = len(whole.reasoning) + len(whole.content) + sum(len(call.arguments) for call in whole.calls)
        assert size >= (1 << 20) - 16


def test_deep_arguments_pass() -> None:
    deep = '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"
    answer = split(open_for("hermes"), [f'<tool_call>{{"name": "f", "arguments": {deep}}}</tool_call>'])
    assert list_calls(answer) == [("f", deep)]
    rows = split(open_for("qwen3_coder"), [write_values(rows="[" * 100_000)])
    assert list_calls(rows) == [("f", f'{{"rows": "{"[" * 100_000}"}}')]


def test_listed_values_say_a_type() -> None:
    properties = {"a": {"enum": [1, 2]}, "b": {"const": 5}, "c": {"anyOf": [{"enum": ["x"]}]}}
    tools = [{"function": {"name": "f", "parameters": {"properties": properties}}}]
    parser = open_parser("qwen3_coder", None, tools=tools)
    assert list_calls(split(parser, [write_values(a="1", b="5", c="3")])) == [
        ("f", '{"a": 1, "b": 5, "c": "3"}')
    ]


def test_a_template_shows_its_format() -> None:
    chosen = {name: choose_tool_format(source) for name, source in TEMPLATES.items()}
    others = {"glm4_items": "glm4", "headers": "llama3", "phi4_mini_card": "phi4_mini", "thinking": "hermes"}
    known = others | {name: name for name in TOOL_FORMATS}
    assert {name: found for name, found in chosen.items() if found} == {
        name: known[name] for name in TEMPLATES if name in known
    }
    reasoning = {name: choose_reasoning_format(source) for name, source in TEMPLATES.items()}
    think = ("deepseek_r1", "deepseek_v3", "deepseek_v31", "glm45", "thinking")
    expected = (
        {HARMONY: HARMONY, "granite": "think_response"}
        | {name: name for name in ("minicpm3", "seed_oss")}
        | dict.fromkeys(think, "think")
    )
    assert {name: found for name, found in reasoning.items() if found} == expected
    assert choose_reasoning_format("[THINK]") == "mistral"
    assert choose_reasoning_format("<|channel>thought") == "gemma4"
    assert choose_reasoning_format("Write after 'Here is my thought process:'") == "granite"
    assert choose_reasoning_format("<think></think> <response></response>") == "think_response"
    assert choose_reasoning_format("<think> <|thought_start|>") == "think"
    assert choose_reasoning_format("<think> Here is my response:") == "think"
    assert choose_tool_format(r"{{ tools }}<TOOLCALL><tool_call>{\"arguments\"") == "hermes"
    assert choose_tool_format(r"{{ tools }}{{- '\n<tool_call>\n<function=' }} \"arguments\"") == "qwen3_coder"
    assert choose_tool_format("{{ message['tool'] }}<|tool|><|/tool|>") is None, "no tools are read"
    assert choose_tool_format("{{ message.tool_calls }}<｜tool▁call▁begin｜>```json") is None, (
        "no tools are read"
    )


@pytest.mark.parametrize("name", [name for name, source in TEMPLATES.items() if choose_tool_format(source)])
def test_a_call_is_read_as_its_template_writes_it(name: str) -> None:
    source, arguments = TEMPLATES[name], {"text": 'a\n"b"', "count": 2}
    call = {"id": "f12345678", "type": "function", "function": {"name": "f", "arguments": arguments}}
    question = {"role": "user", "content": "Who?"}
    template = ChatTemplate({"default": source}, {"bos_token": "", "eos_token": ""})
    before, whole = (
        template.render(RenderChat(talk, TOOLS, add_generation_prompt=False))
        for talk in ([question], [question, {"role": "assistant", "tool_calls": [call]}])
    )
    answer = whole.removeprefix(before).removesuffix("<end_of_turn>\n")
    [(function, written)] = list_calls(split(open_for(choose_tool_format(source)), answer))
    assert (function, json.loads(written)) == ("f", arguments)
