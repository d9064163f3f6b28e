import asyncio
import gc
import json

import openai
import pytest

from millrace_runtime.chat import stop
from millrace_runtime.protocol.encoding import count_tokens, unpack_tokens
from tests.runtime.api.served import REPLY, Served

HI = [{"role": "user", "content": "hi"}]


async def test_chat_answers_whole_with_usage(served: Served) -> None:
    answer = await served.openai.chat.completions.create(model="tiny", messages=HI)
    assert answer.choices[0].message.content == REPLY
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.usage.prompt_tokens == len("user: hi\nassistant:") - 1  # "st" is one token
    assert answer.usage.completion_tokens == len(served.engine.reply)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    [sent] = served.engine.seen
    assert sent.max_tokens == 200 - answer.usage.prompt_tokens


async def test_chat_streams_whole_characters_a_role_and_usage(served: Served) -> None:
    stream = await served.openai.chat.completions.create(
        model="tiny", messages=HI, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks[:-1]]
    assert "".join(pieces) == REPLY
    assert "😀" in pieces
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(served.engine.reply)
    assert len({chunk.id for chunk in chunks}) == 1


async def test_completion_of_several_prompts_and_choices_is_numbered(served: Served) -> None:
    answer = await served.openai.completions.create(
        model="tiny", prompt=["a", "bc"], n=2, max_tokens=3, seed=7
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    assert answer.usage.prompt_tokens == 3
    assert answer.usage.completion_tokens == 12
    seeds = [[new.sampling.seed for new in sent.sequences] for sent in served.engine.seen]
    assert seeds == [[7, 8], [7, 8]]  # a prompt crosses once, however many choices it has
    assert [count_tokens(sent.prompt) for sent in served.engine.seen] == [1, 2]


async def test_the_best_of_several_answers_come_and_all_are_counted(served: Served) -> None:
    ask = {"model": "tiny", "prompt": ["a", "bc"], "n": 2, "best_of": 3, "max_tokens": 3}
    for fields in ({}, {"logprobs": 0, "echo": True, "extra_body": {"return_token_ids": True}}):
        answer = await served.openai.completions.create(**ask, **fields)
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 18)
        assert [len(sent.sequences) for sent in served.engine.seen[-2:]] == [3, 3]
        assert [choice.logprobs is None for choice in answer.choices] == [not fields] * 4
    ids = [choice.prompt_token_ids for choice in answer.choices]
    assert ids == [[64], [64], [65, 66], [65, 66]]
    assert await served.metric("vllm:request_success_total", finished_reason="length") == 12


async def test_a_stream_of_choices_is_complete_and_ends_with_done(served: Served) -> None:
    body = {"model": "tiny", "prompt": [1, 2, 3], "n": 2, "stream": True, "max_tokens": 4}
    answer = await served.client.post("/v1/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done, end = answer.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    for index in range(2):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in mine) == "the st\ufffd"  # cut inside the ö
        assert mine[-1]["finish_reason"] == "length"
    assert "usage" not in chunks[0]


async def test_absent_seeds_differ_and_given_parameters_reach_the_engine(served: Served) -> None:
    await served.openai.completions.create(
        model="tiny", prompt="a", n=2, max_tokens=1, temperature=0.5, top_p=0.9, presence_penalty=1,
        extra_body={"top_k": 5, "min_p": 0.1, "ignore_eos": True, "stop_token_ids": [9]},
    )  # fmt: skip
    [sent] = served.engine.seen
    first, second = sent.sequences
    assert first.sampling.seed != second.sampling.seed
    sampling = first.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 5, 0.1)
    assert (sampling.presence_penalty, sampling.num_logprobs) == (1.0, None)
    assert sent.stop_token_ids == [9]


@pytest.mark.parametrize(
    ("stop", "text"), [("töp", "the s"), (["nope", " 😀 e"], "the stöp"), ("ends!", REPLY)]
)
async def test_stop_strings_cross_tokens_and_abort_the_rest(served: Served, stop: object, text: str) -> None:
    whole = await served.openai.completions.create(model="tiny", prompt="a", stop=stop, max_tokens=100)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (text, "stop")
    stream = await served.openai.completions.create(
        model="tiny", prompt="a", stop=stop, max_tokens=100, stream=True
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == text
    assert chunks[-1].choices[0].finish_reason == "stop"
    await served.until(lambda: not served.engine.running)


async def test_chat_logprobs_tell_each_tokens_bytes(served: Served) -> None:
    answer = await served.openai.chat.completions.create(
        model="tiny", messages=HI, logprobs=True, top_logprobs=2, max_completion_tokens=5
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == 5
    assert (
        bytes(byte for position in content for byte in position.bytes).decode(errors="ignore") in "the stöp"
    )
    assert content[0].token == "the"
    assert content[0].logprob == -0.5
    assert [top.logprob for top in content[0].top_logprobs] == [-0.5, -1.5]


async def test_completion_logprobs_stream_what_they_answer_whole(served: Served) -> None:
    ask = {"model": "tiny", "prompt": "a", "logprobs": 1, "max_tokens": 3}
    whole = (await served.openai.completions.create(**ask)).choices[0].logprobs
    stream = await served.openai.completions.create(**ask, stream=True)
    parts = [chunk.choices[0].logprobs async for chunk in stream]
    assert whole.tokens == [token for part in parts for token in part.tokens]
    assert whole.text_offset == [offset for part in parts for offset in part.text_offset] == [0, 3, 4]
    assert whole.token_logprobs == [-0.5] * 3
    assert whole.top_logprobs[0] == {"the": -0.5}


async def test_text_parts_are_joined(served: Served) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    await served.openai.chat.completions.create(model="tiny", messages=[{"role": "user", "content": parts}])
    assert (
        served.replica.tokenizer.decode(list(unpack_tokens(served.engine.seen[0].prompt)))
        == "user: a\nb\nassistant:"
    )


async def test_many_streams_at_once_are_each_complete(served: Served) -> None:
    async def read() -> str:
        stream = await served.openai.completions.create(model="tiny", prompt="a", max_tokens=100, stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    assert await asyncio.gather(*(read() for _ in range(20))) == [REPLY] * 20


async def test_a_fault_of_one_sequence_is_a_500_that_says_why(served: Served) -> None:
    served.engine.fails_sequences = True
    with pytest.raises(openai.InternalServerError, match="not finite"):
        await served.openai.completions.create(model="tiny", prompt="a")
    served.engine.fails_sequences = False
    assert (await served.openai.completions.create(model="tiny", prompt="a", max_tokens=1)).choices[0].text


def count_stop_states() -> int:
    gc.collect()
    return sum(type(item) is stop._State for item in gc.get_objects())


async def test_choices_share_what_their_stop_strings_need_and_it_goes_with_them(served: Served) -> None:
    before = count_stop_states()
    served.engine.pauses_after = 0
    body = {"prompt": ["a", "b"], "n": 4, "stop": ["x" * 200]}
    answer = asyncio.create_task(served.client.post("/v1/completions", json=body))
    await served.until(lambda: len(served.engine.seen) == 2)
    assert count_stop_states() == before + 201
    served.engine.pauses_after = None
    assert len((await answer).json()["choices"]) == 8
    await served.replica.wait_idle()
    assert count_stop_states() == before
