"""Echoes and log-probabilities of prompts, as clients see them."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from millrace_runtime.api.answer.logprobs import CompletionLogprobs
from millrace_runtime.api.answer.prompt import Echo, PromptReader
from millrace_runtime.api.settings import ApiSettings
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.protocol.encoding import pack_floats, pack_tokens
from millrace_runtime.protocol.messages import SequenceOutput
from millrace_runtime.protocol.step import PromptLogprobs
from testing.text_model import build_sentencepiece, write_model
from tests.runtime.api.served import Served, serve

PROMPT = "öthe <|end|>st"
"""In the tokenizer of the tests: two bytes, a word, a space, a special token, a word."""


async def complete(served: Served, **body: Any) -> list[dict[str, Any]]:
    answer = await served.client.post("/v1/completions", json={"max_tokens": 2} | body)
    assert answer.status_code == 200, answer.text
    choices: list[dict[str, Any]] = answer.json()["choices"]
    return choices


async def stream(served: Served, **body: Any) -> list[list[dict[str, Any]]]:
    """The chunks of each choice."""
    answer = await served.client.post("/v1/completions", json={"max_tokens": 2, "stream": True} | body)
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line.startswith("data: {")]
    chunks = [orjson.loads(line)["choices"][0] for line in lines]
    return [[c for c in chunks if c["index"] == index] for index in sorted({c["index"] for c in chunks})]


def join(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The choice that a stream's chunks make."""
    whole = dict(chunks[-1]) | {"text": "".join(chunk["text"] for chunk in chunks)}
    if whole["logprobs"] is not None:
        whole["logprobs"] = {
            name: [value for chunk in chunks for value in chunk["logprobs"][name]]
            for name in whole["logprobs"]
        }
    return whole


ECHOES: list[dict[str, Any]] = [
    {"prompt": PROMPT},
    {"prompt": PROMPT, "logprobs": 0},
    {"prompt": PROMPT, "logprobs": 3, "max_tokens": 0},
    {"prompt": PROMPT, "logprobs": 1, "max_tokens": 1, "prompt_logprobs": 3, "n": 2},
    {"prompt": [PROMPT, "a"], "logprobs": 2, "n": 2, "max_tokens": 100},
    {"prompt": "a", "logprobs": 2, "max_tokens": 0},
    {"prompt": PROMPT, "max_tokens": 0},
]


@pytest.mark.parametrize("body", ECHOES)
@pytest.mark.parametrize("kind", ["text", "ids"])
async def test_an_echo_is_prompt_and_continuation_whole_and_streamed(
    served: Served, body: dict[str, Any], kind: str
) -> None:
    tokenizer, number = served.replica.tokenizer, body.get("logprobs")
    prompts = (
        body["prompt"]
        if isinstance(body["prompt"][0], str) and not isinstance(body["prompt"], str)
        else [body["prompt"]]
    )
    ids = [
        p if isinstance(p, list) else tokenizer.encode_batch([p], add_special_tokens=True)[0] for p in prompts
    ]
    if kind == "ids":
        body = body | {"prompt": ids}
    whole = await complete(served, echo=True, **body)
    plain = [] if body.get("max_tokens") == 0 else await complete(served, **body)
    for choice in whole:
        prompt = ids[choice["index"] // body.get("n", 1)]
        text = tokenizer.decode(prompt, hides_special=False)
        rest = plain[choice["index"]] if plain else {"text": "", "finish_reason": "length", "logprobs": None}
        assert (choice["text"], choice["finish_reason"]) == (text + rest["text"], rest["finish_reason"])
        if number is None:
            assert choice["logprobs"] is None
            continue
        logprobs = choice["logprobs"]
        assert "".join(logprobs["tokens"]).replace("bytes:\\xc3bytes:\\xb6", "ö")[: len(text)] == text
        assert logprobs["token_logprobs"][: len(prompt)] == [
            None,
            *(-1.0 - place for place in range(len(prompt) - 1)),
        ]
        assert [top and len(top) for top in logprobs["top_logprobs"][: len(prompt)]] == [
            None,
            *(max(number, 1) + (number == 1) for _ in prompt[1:]),
        ]
        offsets = logprobs["text_offset"]
        assert all(
            choice["text"][offset:].startswith(token)
            for token, offset in zip(logprobs["tokens"], offsets, strict=True)
            if "bytes:" not in token
        )
        if plain:
            assert logprobs["tokens"][len(prompt) :] == rest["logprobs"]["tokens"]
            assert offsets[len(prompt) :] == [len(text) + at for at in rest["logprobs"]["text_offset"]]
    if "prompt_logprobs" not in body:
        chunks = await stream(served, echo=True, **body)
        assert [join(one) for one in chunks] == whole
        assert [one[0]["text"] for one in chunks] == [
            tokenizer.decode(prompt, hides_special=False) for prompt in ids for _ in range(body.get("n", 1))
        ]


async def test_prompt_logprobs_are_what_vllm_answers(served: Served) -> None:
    expected = [
        None,
        {
            "72": {"logprob": -1.0, "rank": 2, "decoded_token": "i"},
            "1": {"logprob": -0.5, "rank": 1, "decoded_token": '"'},
        },
    ]
    for body, want in (
        ({"prompt_logprobs": 2}, expected),
        ({"prompt_logprobs": 0}, [None, {"72": expected[1]["72"]}]),
        ({}, None),
    ):
        for max_tokens in (0, 3) if body else (3,):
            for choice in await complete(served, prompt="hi", n=2, max_tokens=max_tokens, **body):
                assert choice.get("prompt_logprobs") == want
                assert choice["logprobs"] is None
    [choice] = await complete(served, prompt=[71], prompt_logprobs=2)
    assert choice["prompt_logprobs"] == [None]


async def test_a_chats_answer_scores_its_prompt_once(served: Served) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "n": 2, "prompt_logprobs": 1, "max_tokens": 0}
    answer = (await served.client.post("/v1/chat/completions", json=body)).json()
    assert answer["usage"]["completion_tokens"] == 0
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["", ""]
    assert all("prompt_logprobs" not in choice for choice in answer["choices"])
    refused = await served.client.post("/v1/chat/completions", json=body | {"echo": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "echo")


async def test_scores_that_wait_for_their_answers_end_hold_the_memory_of_streams(served: Served) -> None:
    served.engine.pauses_after = 1
    body = {"prompt": "a" * 150, "prompt_logprobs": 20, "max_tokens": 9, "echo": True, "logprobs": 20}
    asking = asyncio.create_task(complete(served, **body))
    await served.until(lambda: served.engine.num_steps)
    await served.until(lambda: served.replica.admission.num_event_bytes > 150 * 2 * 20 * 10)
    served.engine.pauses_after = None
    await asking
    assert served.replica.admission.num_event_bytes == 0
    assert served.replica.admission.num_queued_tokens == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_logprobs": 9, "n": 2}, "prompt_logprobs"),
        ({"prompt_logprobs": 19}, "prompt_logprobs"),
        ({"echo": True, "logprobs": 19}, "logprobs"),
        ({"echo": True, "logprobs": 19, "stream": True}, "logprobs"),
        ({"echo": True, "logprobs": 5, "prompt_logprobs": 13}, "prompt_logprobs"),
        ({"prompt_logprobs": 18}, None),
        ({"logprobs": 19, "n": 2, "max_tokens": 1}, None),
        ({"messages": [{"role": "user", "content": "b" * 100}], "n": 9, "prompt_logprobs": 3}, None),
    ],
)
async def test_scores_that_would_fill_the_memory_are_refused(
    model_path: Path, fields: dict[str, Any], param: str | None
) -> None:
    """Of 100 tokens, with 75 bytes for each of theirs and of the likely ones."""
    settings = ApiSettings(served_name="tiny", max_event_bytes=2 * 100 * 19 * 75)
    body = {"max_tokens": 0} | ({} if "messages" in fields else {"prompt": "b" * 100}) | fields
    path = "chat/completions" if "messages" in fields else "completions"
    async with serve(model_path, settings) as served:
        answer = await served.client.post(f"/v1/{path}", json=body)
        assert (answer.status_code, answer.json().get("error", {}).get("param")) == (
            400 if param else 200,
            param,
        )
        assert not param or "send fewer" in answer.json()["error"]["message"]


async def test_a_prompt_as_long_as_the_model_may_be_scored(served: Served) -> None:
    [choice] = await complete(served, prompt="b" * 200, echo=True, logprobs=0, max_tokens=0)
    assert len(choice["logprobs"]["tokens"]) == 200
    assert await served.metric("vllm:request_success_total", finished_reason="length") == 1


def test_an_echo_comes_in_pieces_and_has_no_token_that_the_client_did_not_write(tmp_path: Path) -> None:
    """A tokenizer of SentencePiece's kind adds a token before each prompt."""
    native = build_sentencepiece()
    native.add_special_tokens(["<s>"])
    tokenizer = Tokenizer.load(write_model(tmp_path, native))
    begin = native.token_to_id("<s>")
    [tokens] = tokenizer.encode_batch(["b aé <s>c"], add_special_tokens=False)
    prompt = [begin, *tokens]
    for size in (1, 2, len(prompt)):
        reader = PromptReader(
            prompt, Echo(prompt, "b aé <s>c", tokenizer), num_logprobs=0, wants_scores=False
        )
        deltas = []
        for first in range(1, len(prompt), size):
            count = min(size, len(prompt) - first)
            scores = PromptLogprobs(first, pack_tokens([1] * count), pack_floats([-1.0] * count), b"", b"")
            is_last = first + count == len(prompt)
            deltas.append(reader.accept(SequenceOutput(0, [1] * is_last, [], None, None, scores)))
        assert "".join(delta.text for delta in deltas if delta) == "b aé <s>c"
        positions = [position for delta in deltas if delta for position in delta.positions]
        assert [position.token for position in positions] == prompt
        offsets = [position.text_offset for position in positions]
        assert (offsets[0], offsets[1], offsets[-1]) == (0, 0, len("b aé <s>"))
        logprobs = CompletionLogprobs(tokenizer)
        logprobs.add(positions)
        # Spaces that the tokenizer has put before the text and behind a special token are none of it.
        assert orjson.loads(b"".join(logprobs.encode()))["tokens"] == [
            *("<s>", "", "b", " ", "a", "bytes:\\xc3", "bytes:\\xa9", " ", "<s>", "", "c")
        ]
        assert reader.num_characters == len("b aé <s>c")
