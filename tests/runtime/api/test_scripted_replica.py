"""The replica that says given texts, which the clients of tests/clients ask."""

import json
from pathlib import Path
from typing import Any

import openai
from openai.types.chat import ChatCompletionMessageParam

from testing.scripted_replica import SERVED_NAME, serve_script

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOL: Any = {"type": "function", "function": {"name": "find", "parameters": SCHEMA}}
ANSWERS = {
    "wrong": 'So. <tool_call>\n{"name": "find", "arguments": {"n": 01}}\n</tool_call>',
    "weather": "Rain, 18 °C 😀",
    "8 °C": "Take a coat.",
    "Once": " upon a time",
    "number": '{"n": 12}',
}


def ask(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


async def test_each_cue_gets_its_answer_in_every_turn_and_under_a_grammar(tmp_path: Path) -> None:
    async with (
        serve_script(tmp_path, ANSWERS) as replica,
        openai.AsyncOpenAI(base_url=replica.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        chats = client.chat.completions
        first = (await chats.create(model=SERVED_NAME, messages=ask("the weather?"))).choices[0]
        assert (first.message.content, first.finish_reason) == (ANSWERS["weather"], "stop")
        turns = [*ask("the weather?"), {"role": "tool", "tool_call_id": "1", "content": "8 °C"}]
        second = (await chats.create(model=SERVED_NAME, messages=turns)).choices[0]
        assert second.message.content == "Take a coat."
        bound = await chats.create(
            model=SERVED_NAME,
            messages=ask("a number"),
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
        )
        assert json.loads(bound.choices[0].message.content or "") == {"n": 12}
        text = await client.completions.create(model=SERVED_NAME, prompt="Once", logprobs=2)
        assert text.choices[0].text == " upon a time"
        endless = await client.completions.create(
            model=SERVED_NAME, prompt="x", max_tokens=80, extra_body={"ignore_eos": True}
        )
        assert "written for this. Nothing is" in endless.choices[0].text


async def test_a_call_that_the_model_writes_wrong_is_drawn_again(tmp_path: Path) -> None:
    async with (
        serve_script(tmp_path, ANSWERS) as replica,
        openai.AsyncOpenAI(base_url=replica.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        chats = client.chat.completions
        whole = await chats.create(model=SERVED_NAME, messages=ask("wrong"), tools=[TOOL])
        [call] = whole.choices[0].message.tool_calls or ()
        assert (call.function.name, json.loads(call.function.arguments)["n"]) == ("find", 0)
