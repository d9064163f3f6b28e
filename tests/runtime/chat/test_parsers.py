"""What answers are split into, for each format, wherever the text is cut."""

import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_runtime.chat.parsers.answer import AnswerDelta, AnswerParser, TextDelta, join_deltas
from millrace_runtime.chat.parsers.choose import TOOL_FORMATS, choose_tool_format, has_reasoning, open_parser

PROPERTIES = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "rows": {"type": ["array", "null"]},
    "odd": True,
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": PROPERTIES}}}]
HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
LLAMA = '{"name": "f", "parameters": {"a": 1}}'
TRICKY = r'{"a": "}</tool_call>\"]", "b": [{"c": "{[<tool_call>"}], "d": "\\"}'


def write_values(**values: str) -> str:
    written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function=f>\n{written}</function>\n</tool_call>"


# fmt: off
ANSWERS: list[tuple[str | None, str, str, list[tuple[str, str]]]] = [
    (None, HERMES, HERMES, []),
    ("hermes", f"Well.\n{HERMES}\n{HERMES}\n\nDone.", "Well.\nDone.", [("f", '{"a": 1}')] * 2),
    ("hermes", f'<tool_call>{{"arguments": {TRICKY}, "name": "f"}}</tool_call>', "", [("f", TRICKY)]),
    ("hermes", f'<tool_call>{{"id": [{{}}], "n": -1, "name": "\\u0066", "parameters": {TRICKY}', "",
     [("f", TRICKY)]),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arg', "", [("f", "")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": [1, "\\', "", [("f", '{"a": [1, "\\')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1</tool_call> So', "So", [("f", '{"a": 1')]),
    ("hermes", f"{HERMES[:-13]}}}}}\n</tool_call>!", "!", [("f", '{"a": 1}')]),
    ("hermes", f"<tool_call>{LLAMA}\n{LLAMA}</tool_call>", "", [("f", '{"a": 1}')] * 2),
    ("hermes", f"<tool_call><tool_call>{LLAMA} none", "<tool_call>none", [("f", '{"a": 1}')]),
    ("llama3", f"{LLAMA}; {LLAMA}\n{LLAMA}", "", [("f", '{"a": 1}')] * 3),
    ("llama3", f" <|python_tag|>{LLAMA.replace('parameters', 'arguments')}\n", "", [("f", '{"a": 1}')]),
    ("llama3", f'{{"type": "function", "name": "f", "parameters": {TRICKY}}}', "", [("f", TRICKY)]),
    ("llama3", f'{LLAMA}\n{{"b": 2}}', '{"b": 2}', [("f", '{"a": 1}')]),
    ("llama3", '{"name": "f", "para', "", [("f", "")]),
    ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": 1},{"name":"g","arguments": {"": "]"}}]',
     "", [("f", "{}"), ("g", '{"": "]"}')]),
    ("mistral", f"So:[TOOL_CALLS]f[ARGS]{TRICKY}[TOOL_CALLS]g{{}}", "So:", [("f", TRICKY), ("g", "{}")]),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]a1[ARGS] {"a": 1', "", [("f", '{"a": 1')]),
    ("mistral", "[TOOL_CALLS]f[ARGS]", "", [("f", "")]),
    ("qwen3_coder", f"Well.\n{write_values()}\n{write_values()}\nDone.", "Well.\nDone.", [("f", "{}")] * 2),
    ("qwen3_coder", write_values(text='a\n"b" }</x>\n', count="2"), "",
     [("f", r'{"text": "a\n\"b\" }</x>\n", "count": 2}')]),
    ("qwen3_coder", write_values(text="1", count="one", maybe="null", rows="None", odd="7"), "",
     [("f", '{"text": "1", "count": "one", "maybe": null, "rows": null, "odd": "7"}')]),
    ("qwen3_coder", write_values(rows='[1, {"a": 2.50}]', count="NaN", maybe="3"), "",
     [("f", '{"rows": [1, {"a": 2.50}], "count": "NaN", "maybe": "3"}')]),
    ("qwen3_coder", write_values(text="a", count="1").replace("</parameter>\n", ""), "",
     [("f", '{"text": "a", "count": 1}')]),
    ("qwen3_coder", write_values(text="a")[12:], "", [("f", '{"text": "a"}')]),
    ("qwen3_coder", "<function=f>\n<parameter=text>\nab", "", [("f", '{"text": "ab')]),
    ("qwen3_coder", "<function=f>\n<parameter=text>a</parameter><parameter=c", "", [("f", '{"text": "a"')]),
]
NO_CALLS = {
    "hermes": ["<tool_call>no</tool_call>", '<tool_call>{"arguments": {}', "<tool_cal",
               '<tool_call>{"name": "f", "arguments": "{}"}', '<tool_call>{"name": "\\ud800", "arguments":',
               '<tool_call>{"name": 1}'],
    "llama3": [f"I say {LLAMA}", '{"a": {"name": "f"}}', '{"name": "Ann", "age": 3}', "<|python_tag|>print()",
               ' \n{"parameters": {}} {', "<|python", '["name"]', f"; {LLAMA}"],
    "mistral": ["[TOOL_CALLS] no, [ARGS]{}", "[TOOL_CALLS]f[ARG", '[TOOL_CALLS] [{"a": 1}]', "a [TOOL_CALLS",
                "[TOOL_CALLS]f[ARGS] no", f"[TOOL_CALLS]{'f' * 300}[ARGS]{{}}"],
    "qwen3_coder": ["<tool_call>\nno", "<tool_call> <function=", "<function=>a", "<function=a\n>", "<functio",
                    f"<function={'f' * 300}></function>"],
}
MARKS = ["<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "<tool_call>", "</tool_call>", "</function>",
         "<parameter=text>", "<parameter=rows>", "</parameter>", "<|python_tag|>", "\n", *'{}[]<>",:\\;a ']
PARTS = st.sampled_from([*(text for _, text, _, _ in ANSWERS), *sum(NO_CALLS.values(), MARKS)])
FORMATS = [None, *TOOL_FORMATS]
THOUGHTS = [
    ("<think>\nA\n\nb\n</think>\n\nC\n", False, "A\n\nb", "C\n"),
    ("\n <think>a</think>b</think>", False, "a", "b</think>"),
    ("<think>\n\n</think>\n\nHi", False, "", "Hi"),
    ("\nA\n\n", True, "A\n\n", ""),
    ("<think>\na</thin", True, "a</thin", ""),
    ("a</think>b", True, "a", "b"),
    (" \n I <think>", False, "", " \n I <think>"),
    ("<thi", False, "", "<thi"),
]
HOSTILE = {
    "hermes": ("<", "<tool_call>", '<tool_call>{"a":', '<tool_call>{"a": "<tool_call>" ', "</tool_call"),
    "llama3": ('{"parameters": {"a": ', "<|python_tag|>", "{"),
    "mistral": ("[", "[TOOL_CALLS]", "[TOOL_CALLS]f", "[TOOL_CALLS]f[CALL_ID]", '[TOOL_CALLS]{"a": ['),
    "qwen3_coder": ("<function=", "<function=f><parameter=", "\n</", "<function=f><parameter=rows>["),
}
# fmt: on
BEGUN = ['<tool_call>{"name": "f", "arguments": {"a": ', "[TOOL_CALLS]f{", "<function=f><parameter=text>"]
TEMPLATES = {path.stem: path.read_text() for path in Path(__file__).with_name("templates").glob("*.jinja")}


def open_for(tool_format: str | None, *, begins_inside: bool | None = None) -> AnswerParser:
    """The parser; `begins_inside` None is for a model that does not reason."""
    return open_parser(
        tool_format,
        splits_reasoning=begins_inside is not None,
        begins_in_reasoning=bool(begins_inside),
        tools=TOOLS,
    )


def split(parser: AnswerParser, pieces: Iterable[str]) -> AnswerDelta:
    return join_deltas([*map(parser.feed, pieces), parser.finish()])


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


def test_calls_follow_reasoning() -> None:
    answer = split(open_for("hermes", begins_inside=True), f"Hm {HERMES}\n</think>\n\n{HERMES}")
    assert (answer.reasoning, answer.content) == (f"Hm {HERMES}", "")
    assert list_calls(answer) == [("f", '{"a": 1}')]


def test_text_and_calls_keep_their_order_within_a_piece() -> None:
    parts = open_for("hermes", begins_inside=True).feed(f"Hm.</think>a {HERMES}b {HERMES}c").parts
    call = ("f", '{"a": 1}')
    assert parts == (
        ("reasoning", "Hm."), ("content", "a "), (0, *call), ("content", "b "), (1, *call), ("content", "c"),
    )  # fmt: skip


def test_what_is_certain_is_not_held_back() -> None:
    parser = open_for("hermes", begins_inside=True)
    assert [parser.feed(text).reasoning for text in ("a\n", "b</th", "ink>\n")] == ["a", "\nb", ""]
    assert [parser.feed(text).content for text in ("c <", "to", "x")] == ["c ", "", "<tox"]
    call = ('<tool_call>{"name": "f", "argu', 'ments": {"', "a", '": 1}')
    calls = [parser.feed(text).calls for text in call]
    assert calls == [(), ((0, "f", '{"'),), ((0, None, "a"),), ((0, None, '": 1}'),)]
    coder = open_for("qwen3_coder")
    coder.feed("<function=f>\n<parameter=text>\n")
    assert [coder.feed(text).calls for text in ("a\n", "b\n</par")] == [
        ((0, None, "a"),),
        ((0, None, r"\nb"),),
    ]
    llama = open_for("llama3")
    assert llama.feed('{"name": "Ann", "age":').content == '{"name": "Ann", "age":'


@given(st.lists(PARTS, max_size=6).map("".join), st.data())
def test_no_cut_changes_the_sum(text: str, data: st.DataObject) -> None:
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)))
    pieces = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    for tool_format in FORMATS:
        for begins_inside in (None, False, True):
            whole, cut, letters = (
                split(open_for(tool_format, begins_inside=begins_inside), some)
                for some in ([text], pieces, text)
            )
            assert whole == cut == letters


@given(st.lists(PARTS, max_size=6).map("".join))
def test_an_answer_without_calls_loses_nothing(text: str) -> None:
    for tool_format in FORMATS:
        answer = split(open_for(tool_format), [text])
        assert answer.calls or answer.content == text


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
        assert len(whole.content) + sum(len(call.arguments) for call in whole.calls) >= (1 << 20) - 16


def test_deep_arguments_pass() -> None:
    deep = '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"
    answer = split(open_for("hermes"), [f'<tool_call>{{"name": "f", "arguments": {deep}}}</tool_call>'])
    assert list_calls(answer) == [("f", deep)]
    rows = split(open_for("qwen3_coder"), [write_values(rows="[" * 100_000)])
    assert list_calls(rows) == [("f", f'{{"rows": "{"[" * 100_000}"}}')]


def test_a_template_shows_its_format() -> None:
    chosen = {name: choose_tool_format(source) for name, source in TEMPLATES.items()}
    known = {"thinking": "hermes", "headers": "llama3", "mistral": "mistral"}
    assert {name: found for name, found in chosen.items() if found} == known
    assert [name for name, source in TEMPLATES.items() if has_reasoning(source)] == ["thinking"]
    assert choose_tool_format(r"{{- '\n<tool_call>\n<function=' }} \"arguments\"") == "qwen3_coder"
    assert choose_tool_format("<tool_call>{name}\n<arg_key>") is None
