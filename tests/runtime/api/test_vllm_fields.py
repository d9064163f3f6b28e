"""vLLM's fields of a request: what they make of the prompt, of the draws, and of the answer."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors

from millrace_runtime.api.settings import ApiSettings
from millrace_runtime.protocol.encoding import unpack_tokens
from millrace_runtime.protocol.step import FAULT_NOTHING_ALLOWED
from testing.text_model import END_TOKEN, build_byte_level, write_model
from tests.runtime.api.scripted import serve_answer
from tests.runtime.api.served import REPLY, Served, serve

HI = [{"role": "user", "content": "hi"}]
PATHS: list[tuple[str, dict[str, Any]]] = [
    ("completions", {"prompt": "a"}),
    ("chat/completions", {"messages": HI}),
]


async def ask(served: Served, body: dict[str, Any], path: str = "completions") -> Any:
    answer = await served.client.post(f"/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def encode(served: Served, *texts: str) -> list[list[int]]:
    return served.replica.tokenizer.encode_batch(texts, add_special_tokens=False)


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_bad_words_are_banned_as_they_begin_a_text_and_behind_a_space(
    served: Served, path: str, body: dict[str, Any]
) -> None:
    await ask(served, body | {"bad_words": ["the", " q", "stop", "ab"], "logit_bias": {"7": 1}}, path)
    [sent] = served.engine.seen
    the, spaced_the, q, stop, ab = encode(served, "the", " the", "q", "stop", "ab")
    assert [len(word) for word in (the, spaced_the, q, stop, ab)] == [1, 1, 1, 2, 2]
    assert sent.sequences[0].sampling.bias == {7: 1.0, the[0]: -math.inf, spaced_the[0]: -math.inf} | {
        q[0]: -math.inf
    }
    assert sent.bad_words == [stop, ab]  # " stop" is another word, and ends as this one does


async def test_a_prompt_is_cut_to_its_last_tokens(served: Served) -> None:
    long = "a" * 500
    for fields, length in (
        ({"truncate_prompt_tokens": 3}, 3),
        ({"truncate_prompt_tokens": 190}, 190),
        ({"truncate_prompt_tokens": -1}, 200 - 16),
        ({"truncate_prompt_tokens": -1, "max_tokens": 150}, 50),
        ({"truncate_prompt_tokens": -1, "user": "x" * 200_000}, 200 - 16),
        ({"truncate_prompt_tokens": 3, "truncation_side": "left"}, 3),
    ):
        for prompt in (f"{long}bcd", encode(served, f"{long}bcd")[0]):
            await ask(served, {"prompt": prompt} | fields)
            sent = list(unpack_tokens(served.engine.seen[-1].prompt))
            assert len(sent) == length
            assert sent[-3:] == encode(served, "bcd")[0]
    await ask(served, {"messages": [HI[0] | {"content": long}], "truncate_prompt_tokens": -1}, PATHS[1][0])
    assert len(unpack_tokens(served.engine.seen[-1].prompt)) == 150


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_the_tokens_of_prompt_and_answer_come_back_whole_and_streamed(
    served: Served, path: str, body: dict[str, Any]
) -> None:
    asked = body | {"return_token_ids": True, "n": 2, "max_tokens": 50}
    whole = await ask(served, asked, path)
    prompt = list(unpack_tokens(served.engine.seen[0].prompt))
    holders = [whole] if "messages" in body else whole["choices"]
    assert [holder["prompt_token_ids"] for holder in holders] == [prompt] * len(holders)
    assert [choice["token_ids"] for choice in whole["choices"]] == [served.engine.reply] * 2
    text = (await served.client.post(f"/v1/{path}", json=asked | {"stream": True})).text
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    for index in range(2):
        mine = [chunk for chunk in chunks if chunk["choices"][0]["index"] == index]
        ids = [chunk["choices"][0].get("token_ids", []) for chunk in mine]
        assert [token for some in ids for token in some] == served.engine.reply
        holders = mine if "messages" in body else [chunk["choices"][0] for chunk in mine]
        assert [holder.get("prompt_token_ids") for holder in holders] == [prompt] + [None] * (len(mine) - 1)
    assert "token_ids" not in str(await ask(served, body, path))


async def test_a_stream_that_generates_nothing_has_its_prompts_tokens_once(served: Served) -> None:
    asked = {"prompt": [64, 65], "echo": True, "max_tokens": 0, "return_token_ids": True, "stream": True}
    for fields in ({}, {"logprobs": 1}):
        text = (await served.client.post("/v1/completions", json=asked | fields)).text
        chunks = [
            json.loads(line[6:])["choices"][0] for line in text.splitlines() if line.startswith("data: {")
        ]
        assert [chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk] == [[64, 65]]


async def test_log_probabilities_may_name_tokens_by_their_ids(served: Served) -> None:
    by_id = {"return_tokens_as_token_ids": True, "max_tokens": 2}
    names = [f"token_id:{token}" for token in served.engine.reply[:2]]
    text = (await ask(served, PATHS[0][1] | by_id | {"logprobs": 1}))["choices"][0]["logprobs"]
    assert text["tokens"] == [next(iter(top)) for top in text["top_logprobs"]] == names
    chat = await ask(served, PATHS[1][1] | by_id | {"logprobs": True, "top_logprobs": 1}, PATHS[1][0])
    content = chat["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == names
    assert [entry["top_logprobs"][0]["token"] for entry in content] == names
    assert bytes(content[0]["bytes"]) == b"the"


async def test_special_tokens_around_a_prompt_are_added_where_the_client_says(tmp_path: Path) -> None:
    native = build_byte_level()
    end = native.token_to_id(END_TOKEN)
    native.post_processor = processors.TemplateProcessing(f"{END_TOKEN} $A", None, [(END_TOKEN, end)])
    async with serve(write_model(tmp_path, native), ApiSettings(served_name="tiny")) as served:
        for path, body in PATHS:
            is_chat = "messages" in body
            for adds, wanted in ((None, not is_chat), (True, True), (False, False)):
                fields = body | {"add_special_tokens": adds}
                await ask(served, fields, path)
                sent = list(unpack_tokens(served.engine.seen[-1].prompt))
                assert (sent[0] == end) == wanted
                assert (await served.client.post("/tokenize", json=fields)).json()["tokens"] == sent
        for fields, wanted, echo in (
            ({"prompt": "abcd", "truncate_prompt_tokens": 3}, [end, 66, 67], "cd"),
            ({"prompt": "abcd", "truncate_prompt_tokens": 1}, [end], ""),
            ({"prompt": "abcd", "truncate_prompt_tokens": 5}, [end, 64, 65, 66, 67], "abcd"),
            (
                {"prompt": "abcd", "truncate_prompt_tokens": 3, "truncation_side": "right"},
                [end, 64, 65],
                "ab",
            ),
            (
                {"prompt": [64, 65, 66], "truncate_prompt_tokens": 2, "truncation_side": "right"},
                [64, 65],
                "ab",
            ),
            (
                {"prompt": "abcd", "truncate_prompt_tokens": 3, "add_special_tokens": False},
                [65, 66, 67],
                "bcd",
            ),
            ({"prompt": [64, 65, 66], "truncate_prompt_tokens": 2}, [65, 66], "bc"),
            ({"prompt": ["abcd", "d"], "truncate_prompt_tokens": 3}, [end, 67], "d"),
        ):
            for padding in ("", "x" * 200_000):
                answer = await ask(served, fields | {"user": padding, "echo": True, "max_tokens": 1})
                assert list(unpack_tokens(served.engine.seen[-1].prompt)) == wanted
                assert answer["choices"][-1]["text"] == echo + "the"


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_an_answer_says_what_of_the_clients_ended_it_whole_and_streamed(
    served: Served, path: str, body: dict[str, Any]
) -> None:
    token, end = served.engine.reply[3], served.engine.reply[-1]
    body = body | {"max_tokens": 50}
    for fields, finish, reason in (
        ({}, "stop", None),
        ({"max_tokens": 2}, "length", None),
        ({"stop": ["x", " 😀"]}, "stop", " 😀"),
        ({"stop_token_ids": [token]}, "stop", token),
        ({"stop_token_ids": [token], "include_stop_str_in_output": True}, "stop", token),
        ({"stop_token_ids": [end]}, "stop", None),
        ({"stop_token_ids": [end], "ignore_eos": True}, "stop", end),
    ):
        [whole] = (await ask(served, body | fields, path))["choices"]
        text = (await served.client.post(f"/v1/{path}", json=body | fields | {"stream": True})).text
        chunks = [
            json.loads(line[6:])["choices"][0] for line in text.splitlines() if line.startswith("data: {")
        ]
        for ended in (whole, chunks[-1]):
            assert (ended["finish_reason"], ended["stop_reason"]) == (finish, reason)
        assert not [chunk for chunk in chunks[:-1] if "stop_reason" in chunk]


async def test_a_conversation_has_the_same_tokens_as_its_chat(tmp_path: Path) -> None:
    find = {"type": "function", "function": {"name": "find"}}
    last = [*HI, {"role": "assistant", "content": "So"}]
    async with serve_answer(tmp_path, "x") as served:
        for fields in (
            {"tools": [find], "chat_template": None, "documents": [{"text": "d"}]},
            {"chat_template_kwargs": {"thinks": True}, "reasoning_effort": "none"},
            {"enable_thinking": False, "thinking": {"type": "enabled"}, "reasoning": {"effort": "low"}},
            {"messages": last, "continue_final_message": True, "add_generation_prompt": False},
        ):
            await ask(served, {"messages": HI} | fields, PATHS[1][0])
            answer = await served.client.post("/tokenize", json={"messages": HI} | fields)
            assert answer.json()["tokens"] == list(unpack_tokens(served.engine.seen[-1].prompt))
        for fields, said in (
            ({"continue_final_message": True, "add_generation_prompt": True}, "exclude each other"),
            ({"chat_template": "{{ x }}"}, "the model's own template"),
            ({"tools": [{"type": "function"}]}, "missing required field"),
        ):
            refused = await served.client.post("/tokenize", json={"messages": HI} | fields)
            assert refused.status_code == 400
            assert said in refused.json()["error"]["message"]


async def test_tokens_come_as_the_vocabulary_spells_them_where_the_client_asks(served: Served) -> None:
    for fields, pieces in (({"return_token_strs": True}, ["the", "Ġthe", "st"]), ({}, None)):
        answer = await served.client.post("/tokenize", json={"prompt": "the thest"} | fields)
        assert answer.json()["token_strs"] == pieces


async def test_no_spaces_come_between_special_tokens(served: Served) -> None:
    shown = PATHS[0][1] | {"skip_special_tokens": False, "ignore_eos": True, "max_tokens": 18}
    for value in (None, True, False):
        answer = await ask(served, shown | {"spaces_between_special_tokens": value})
        assert answer["choices"][0]["text"] == f"{REPLY}{END_TOKEN}the"


REFUSED = [
    ({"best_of": 2, "stream": True}, "best_of", "leave out `stream`"),
    ({"best_of": 33, "prompt": ["a"] * 4}, "prompt", "4 prompts with 33 choices"),
    ({"best_of": 1, "n": 2}, "best_of", "`n` is 2"),
    ({"bad_words": [""]}, "bad_words[0]", "length >= 1"),
    ({"bad_words": [" "]}, "bad_words", "no token"),
    (
        {"bad_words": ["x"], "logit_bias": {str(1000 + place): 1 for place in range(1024)}},
        "bad_words",
        "have 1025 tokens",
    ),
    ({"bad_words": ["a"], "allowed_token_ids": [64]}, "bad_words", "bans all"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least one"),
    ({"truncate_prompt_tokens": 190, "max_tokens": 16}, "truncate_prompt_tokens", "takes 184 tokens"),
    ({"allowed_token_ids": [261], "min_tokens": 1}, "min_tokens", "only tokens that end"),
    ({"allowed_token_ids": [5], "stop_token_ids": [5], "min_tokens": 1}, "min_tokens", "only tokens that"),
]


@pytest.mark.parametrize(("fields", "param", "said"), REFUSED)
async def test_what_can_not_be_is_refused_by_name(
    served: Served, fields: dict[str, Any], param: str, said: str
) -> None:
    answer = await served.client.post("/v1/completions", json={"prompt": "a"} | fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert said in error["message"]
    assert served.engine.seen == []


async def test_fields_that_together_leave_no_token_are_the_clients_fault(served: Served) -> None:
    served.engine.fault, served.engine.fails_sequences = FAULT_NOTHING_ALLOWED, True
    for path, body in (*PATHS, ("completions", {"prompt": "a", "stream": True})):
        answer = await served.client.post(f"/v1/{path}", json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
        assert "loosen `bad_words`" in error["message"]
    served.engine.fails_sequences, served.engine.pauses_after = False, served.engine.num_steps + 1
    async with served.client.stream("POST", "/v1/completions", json=body) as streamed:
        lines = streamed.aiter_lines()
        await anext(lines)
        served.engine.fails_sequences, served.engine.pauses_after = True, None
        rest = [json.loads(line[6:]) async for line in lines if line.startswith("data: {")]
    assert rest[-1]["error"]["type"] == "invalid_request_error"


async def test_a_page_of_an_allowed_origin_reads_answers_and_streams(model_path: Path) -> None:
    page, asked = {"Origin": "https://a.example"}, {"Access-Control-Request-Method": "POST"}
    settings = ApiSettings(served_name="tiny", allowed_origins=("https://a.example",))
    async with serve(model_path, settings) as served:
        url = "/v1/completions"
        preflight = await served.client.options(url, headers=page | asked)
        assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (
            204,
            page["Origin"],
        )
        for body in ({"prompt": "a"}, {"prompt": "a", "stream": True}, {"prompt": 1}):
            for headers, allowed in (
                (page, page["Origin"]),
                ({"Origin": "https://b.example"}, None),
                ({}, None),
            ):
                answer = await served.client.post(url, json=body, headers=headers)
                assert answer.headers.get("access-control-allow-origin") == allowed
                assert answer.headers["vary"] == "Origin"
    async with serve(model_path, ApiSettings(served_name="tiny")) as served:
        answer = await served.client.post(url, json={"prompt": "a"}, headers=page)
        assert not [name for name in answer.headers if name.startswith(("access-control", "vary"))]
