"""Log-probabilities as JSON, against their plain definition; and what they cost at an answer's end."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from millrace_runtime.api.answer.chat import ChatWriter
from millrace_runtime.api.answer.choice import Choice, Delta
from millrace_runtime.api.answer.envelope import Envelope
from millrace_runtime.api.answer.openai import CompletionWriter
from millrace_runtime.api.answer.prompt import Position
from millrace_runtime.api.answer.writer import AnswerSpec
from millrace_runtime.api.request.choices import BestOf
from millrace_runtime.api.usage import Usage
from millrace_runtime.chat.stop import build_stops
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.protocol.messages import SequenceOutput
from millrace_runtime.protocol.step import TokenLogprobs
from testing.text_model import build_sentencepiece, write_model
from tests.runtime.api.served import Served

ENVELOPE = Envelope("id", 1, "m", includes_usage=False)
Writer = ChatWriter | CompletionWriter


@pytest.fixture(scope="module")
def tokenizer(model_path: Path) -> Tokenizer:
    return Tokenizer.load(model_path)


def invent_outputs(num_tokens: int, num_top: int, num_choices: int = 1) -> list[SequenceOutput]:
    rng = random.Random(1)
    outputs = []
    for place in range(num_tokens):
        for choice in range(num_choices):
            top = rng.sample(range(262), num_top + 1)
            item = TokenLogprobs(-rng.random(), top[:num_top], [-9 * rng.random() for _ in range(num_top)])
            finish = "length" if place == num_tokens - 1 else None
            drawn = top[0] if place % 2 else top[-1]  # among the most likely ones, or not
            outputs.append(SequenceOutput(choice, [drawn], [item], finish, None))
    return outputs


def accept_all(tokenizer: Tokenizer, outputs: list[SequenceOutput]) -> list[Delta]:
    choices: dict[int, Choice] = {}
    deltas = []
    for output in outputs:
        number = output.sequence_id
        choice = choices.setdefault(number, Choice(number, [97], tokenizer, build_stops((), {}), frozenset()))
        deltas.append(choice.accept(output))
    return [delta for delta in deltas if delta is not None]


def chat_reference(tokenizer: Tokenizer, positions: list[Position]) -> dict[str, Any]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(token)
        return {"token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data)}

    def top(item: TokenLogprobs) -> list[dict[str, Any]]:
        return [entry(*pair) for pair in zip(item.top_tokens, item.top_logprobs, strict=True)]

    content = [entry(p.token, p.logprobs.drawn) | {"top_logprobs": top(p.logprobs)} for p in positions]
    return {"content": content, "refusal": None}


def completion_reference(tokenizer: Tokenizer, positions: list[Position]) -> dict[str, Any]:
    def label(token: int) -> str:
        data = tokenizer.token_bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(chr(byte) if byte < 128 else f"\\x{byte:02x}" for byte in data)

    def top(token: int, item: TokenLogprobs) -> dict[str, float]:
        tops = dict(zip(map(label, item.top_tokens), item.top_logprobs, strict=True))
        return tops | {label(token): item.drawn}

    return {
        "tokens": [label(token) for token, *_ in positions],
        "token_logprobs": [position.logprobs.drawn for position in positions],
        "top_logprobs": [top(position.token, position.logprobs) for position in positions],
        "text_offset": [position.text_offset for position in positions],
    }


BOTH = pytest.mark.parametrize(
    ("open_writer", "reference"), [(ChatWriter, chat_reference), (CompletionWriter, completion_reference)]
)


@BOTH
@pytest.mark.parametrize("num_top", [0, 1, 20])
def test_chunks_and_answers_tell_what_the_plain_definition_does(
    tokenizer: Tokenizer, open_writer: type[Writer], reference: Callable[..., dict[str, Any]], num_top: int
) -> None:
    deltas = accept_all(tokenizer, invent_outputs(200, num_top, num_choices=2))
    writer = open_writer(AnswerSpec(ENVELOPE, tokenizer, has_logprobs=True))
    for delta in deltas:
        writer.add_delta(delta)
        [chunk] = orjson.loads(writer.encode_delta(delta).removeprefix(b"data: "))["choices"]
        assert chunk["logprobs"] == reference(tokenizer, delta.positions)
    for choice in orjson.loads(writer.encode_answer(Usage(1, 400)))["choices"]:
        mine = [delta for delta in deltas if delta.index == choice["index"]]
        positions = [position for delta in mine for position in delta.positions]
        assert len(positions) == 200
        assert choice["logprobs"] == reference(tokenizer, positions)
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        assert text == "".join(delta.text for delta in mine)
        assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("open_writer", [ChatWriter, CompletionWriter])
def test_an_answers_end_does_not_wait_for_all_of_them(
    tokenizer: Tokenizer, open_writer: type[Writer]
) -> None:
    """16 choices of 2000 tokens stopped the event loop for 3.8 s when all were encoded at the end."""
    deltas = accept_all(tokenizer, invent_outputs(400, 20, num_choices=4))
    writer = open_writer(AnswerSpec(ENVELOPE, tokenizer, has_logprobs=True))
    began = time.perf_counter()
    for delta in deltas:
        writer.add_delta(delta)
    ended = time.perf_counter()
    writer.encode_answer(Usage(1, 1600))
    assert time.perf_counter() - ended < ended - began


def test_logprobs_are_told_though_a_stop_string_holds_the_text_back(tokenizer: Tokenizer) -> None:
    [token] = tokenizer.encode_batch(["st"], add_special_tokens=False)[0]
    choice = Choice(0, [97], tokenizer, build_stops(("stop",), {}), frozenset())
    delta = choice.accept(SequenceOutput(0, [token], [TokenLogprobs(-1.0, [], [])], None, None))
    assert delta is not None
    assert (delta.text, [position.token for position in delta.positions]) == ("", [token])


async def test_offsets_are_places_in_the_text_beyond_ascii_too(served: Served) -> None:
    answer = await served.openai.completions.create(model="tiny", prompt="a", logprobs=0, max_tokens=100)
    [choice] = answer.choices
    assert choice.text == "the stöp 😀 ends"
    tokens, offsets = choice.logprobs.tokens, choice.logprobs.text_offset
    assert tokens[:6] == ["the", " ", "st", "bytes:\\xc3", "bytes:\\xb6", "p"]
    assert offsets[:6] == [0, 3, 4, 6, 6, 7]
    whole = [(token, offset) for token, offset in zip(tokens, offsets, strict=True) if "bytes:" not in token]
    assert all(choice.text[offset:].startswith(token) for token, offset in whole)


def test_a_sentencepiece_answer_keeps_its_first_space(tmp_path: Path) -> None:
    """The prompt's end is its context: its text is that of its tokens, and the offsets agree."""
    tokenizer = Tokenizer.load(write_model(tmp_path, build_sentencepiece()))
    [tokens] = tokenizer.encode_batch(["b a b"], add_special_tokens=False)
    [prompt] = tokenizer.encode_batch(["a"], add_special_tokens=False)
    choice = Choice(0, prompt, tokenizer, build_stops((), {}), frozenset())
    items = [TokenLogprobs(-1.0, [], []) for _ in tokens]
    delta = choice.accept(SequenceOutput(0, tokens, items, "length", None))
    assert delta is not None
    spelled = [tokenizer.token_bytes(token).decode() for token in tokens]
    assert delta.text == " b a b" == "".join(spelled)
    assert [delta.text[position.text_offset :] for position in delta.positions] == [
        "".join(spelled[place:]) for place in range(len(tokens))
    ]
    stopped = Choice(0, prompt, tokenizer, build_stops((" b",), {}), frozenset())
    ended = stopped.accept(SequenceOutput(0, tokens, [], None, None))
    assert ended is not None
    assert (ended.text, ended.finish_reason) == ("", "stop")


def test_the_first_token_loses_its_space_with_the_text(tmp_path: Path) -> None:
    """Behind a prompt without a text, such as the special tokens of a chat, a SentencePiece text has none."""
    native = build_sentencepiece()
    tokenizer = Tokenizer.load(write_model(tmp_path, native))
    drawn, other = map(native.token_to_id, ("\u2581a", "b"))
    choice = Choice(0, [], tokenizer, build_stops((), {}), frozenset())
    item = TokenLogprobs(-1.0, [drawn, other], [-1.0, -2.0])
    delta = choice.accept(SequenceOutput(0, [drawn, drawn], [item, item], "length", None))
    assert delta is not None
    writers = [
        open_writer(AnswerSpec(ENVELOPE, tokenizer, True)) for open_writer in (CompletionWriter, ChatWriter)
    ]
    for writer in writers:
        writer.add_delta(delta)
    [text], [chat] = (orjson.loads(writer.encode_answer(Usage(1, 2)))["choices"] for writer in writers)
    logprobs = text["logprobs"]
    assert text["text"] == "".join(logprobs["tokens"]) == "a a"
    assert (logprobs["tokens"], logprobs["text_offset"]) == (["a", " a"], [0, 1])
    assert [list(top) for top in logprobs["top_logprobs"]] == [["a", "b"], [" a", "b"]]
    content = chat["logprobs"]["content"]
    assert (
        bytes(b for entry in content for b in entry["bytes"]).decode() == chat["message"]["content"] == "a a"
    )
    assert [entry["token"] for entry in content] == ["a", " a"]
    assert [entry["top_logprobs"][0]["token"] for entry in content] == ["a", " a"]


@pytest.mark.parametrize("keeps_stop", [False, True])
def test_offsets_tell_which_tokens_are_of_a_stop_string(tokenizer: Tokenizer, *, keeps_stop: bool) -> None:
    """As in vLLM, they are generated and counted, so they have log-probabilities."""
    [tokens] = tokenizer.encode_batch(["the best op"], add_special_tokens=False)
    for size in (1, 3, len(tokens)):
        stops = build_stops(("es",), {}, is_kept=keeps_stop)
        choice = Choice(0, [97], tokenizer, stops, frozenset(), returns_token_ids=True)
        writer = CompletionWriter(AnswerSpec(ENVELOPE, tokenizer, True))
        for first in range(0, len(tokens), size):
            if choice.finish_reason is None:
                new = tokens[first : first + size]
                items = [TokenLogprobs(-1.0, [], []) for _ in new]
                delta = choice.accept(SequenceOutput(0, new, items, None, None))
                writer.add_delta(delta) if delta else None
        [told] = orjson.loads(writer.encode_answer(Usage(1, 1)))["choices"]
        logprobs, text = told["logprobs"], told["text"]
        pairs = list(zip(logprobs["tokens"], logprobs["text_offset"], strict=True))
        assert text == ("the bes" if keeps_stop else "the b")
        assert "".join(token for token, at in pairs if at < len(text))[: len(text)] == text
        assert [token for token, at in pairs if at >= len(text)] == ([] if keeps_stop else ["e", "st"])
        assert len(pairs) == choice.num_tokens


def test_no_alternative_is_lost_where_two_have_one_text(tokenizer: Tokenizer) -> None:
    end = tokenizer.end_token_ids[0]
    twice = Tokenizer(tokenizer._native, tokenizer.config, is_byte_level=True)
    twice._spelling = {7: b"x", 8: b"x", 9: b"x"}
    writer = CompletionWriter(AnswerSpec(ENVELOPE, twice, has_logprobs=True))
    item = TokenLogprobs(-3.0, [7, 8, end], [-0.5, -1.0, -2.0])
    writer.add_delta(Delta(0, "x", [Position(9, 0, item)], "length"))
    [choice] = orjson.loads(writer.encode_answer(Usage(1, 1)))["choices"]
    assert choice["logprobs"]["top_logprobs"] == [
        {"x": -0.5, "token_id:8": -1.0, "<|end|>": -2.0, "token_id:9": -3.0}
    ]


def test_of_each_prompts_choices_those_are_best_whose_tokens_are_likeliest(tokenizer: Tokenizer) -> None:
    drawn = [[-1.0, -1.0], [-1.5], [-0.5, -0.5, -2.0], [-0.1], [-0.3], [-0.2, -0.2]]
    writer = CompletionWriter(AnswerSpec(ENVELOPE, tokenizer, best_of=BestOf(3, 2)))
    for index in (5, 0, 3, 1, 2, 4):
        choice = Choice(index, [97], tokenizer, build_stops((), {}), frozenset())
        for place, number in enumerate(drawn[index], 1):
            finish = "length" if place == len(drawn[index]) else None
            output = SequenceOutput(index, [65 + index], [TokenLogprobs(number, [], [])], finish, None)
            if (delta := choice.accept(output)) is not None:
                writer.add_delta(delta)
    choices = orjson.loads(writer.encode_answer(Usage(2, 10)))["choices"]
    told = [(choice["index"], choice["text"], choice["logprobs"]) for choice in choices]
    spelled = [tokenizer.token_bytes(65 + index).decode() * len(drawn[index]) for index in range(6)]
    best = (0, 2, 3, 5)  # not the shorter ones, which have a larger sum
    assert told == [(place, spelled[index], None) for place, index in enumerate(best)]


def test_a_special_token_as_a_stop_string_ends_the_answer(tokenizer: Tokenizer) -> None:
    end = tokenizer.end_token_ids[0]
    stops = build_stops(("<|end|>",), tokenizer.special_texts)
    choice = Choice(0, [97], tokenizer, stops, frozenset())
    [tokens] = tokenizer.encode_batch(["st"], add_special_tokens=False)
    delta = choice.accept(SequenceOutput(0, [*tokens, end, *tokens], [], None, None))
    assert delta is not None
    assert (delta.text, delta.finish_reason) == ("st", "stop")


def test_first_alternatives_have_no_space_whichever_was_drawn(tmp_path: Path) -> None:
    native = build_sentencepiece()
    tokenizer = Tokenizer.load(write_model(tmp_path, native))
    both = [native.token_to_id(piece) for piece in ("▁a", "▁")]
    for drawn in both:
        scored = TokenLogprobs(-1.0, both, [-1.0, -2.0])
        choice = Choice(0, [], tokenizer, build_stops((), {}), frozenset())
        writer = ChatWriter(AnswerSpec(ENVELOPE, tokenizer, True))
        writer.add_delta(choice.accept(SequenceOutput(0, [drawn], [scored], "length", None)))
        message = orjson.loads(writer.encode_answer(Usage(1, 2)))["choices"][0]
        (position,) = message["logprobs"]["content"]
        assert [top["token"] for top in position["top_logprobs"]] == ["a", ""]
