"""POST /v1/responses as OpenAI's client speaks it."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from millrace_runtime.api.request.responses import read_responses
from tests.runtime.api.scripted import CALL, SCHEMA, serve_answer
from tests.runtime.api.served import REPLY, Served

FIND: dict[str, Any] = {"type": "function", "name": "find", "parameters": SCHEMA, "strict": False}


async def test_a_response_is_answered(served: Served) -> None:
    answer = await served.client.post(
        "/v1/responses", json={"input": "hi", "instructions": "Be brief.", "store": False, "metadata": {}}
    )
    response = Response.model_validate(answer.json())
    assert (response.status, response.output_text) == ("completed", REPLY)
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + 17
    cut = await served.openai.responses.create(model="tiny", input="hi", max_output_tokens=2)
    assert cut.incomplete_details is not None
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


async def test_reasoning_text_and_calls_are_items_whole_and_streamed(tmp_path: Path) -> None:
    async with serve_answer(tmp_path, "<think>\nHm.\n</think>\n\nI look.\n" + CALL) as served:
        responses = served.openai.responses
        whole = await responses.create(model="tiny", input="hi", tools=[FIND])
        assert [item.type for item in whole.output] == ["reasoning", "message", "function_call"]
        reasoning, message, call = whole.output
        assert (reasoning.content[0].text, message.content[0].text) == ("Hm.", "I look.\n")
        assert (call.name, json.loads(call.arguments)) == ("find", {"who": "Zoë"})
        async with responses.stream(model="tiny", input="hi", tools=[FIND]) as stream:
            kinds = [event.type async for event in stream]
            streamed = await stream.get_final_response()
        assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
        assert "response.function_call_arguments.done" in kinds
        assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 3
        assert streamed.output_text == whole.output_text
        assert streamed.output[2].arguments == call.arguments
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "none"}
        items = [item.model_dump(exclude_none=True) for item in whole.output]
        again = await responses.create(
            model="tiny", input=[{"role": "user", "content": "hi"}, *items, result]
        )
        assert again.output_text


def test_items_become_the_messages_that_templates_know() -> None:
    body = {
        "instructions": "S",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
            {"type": "function_call", "call_id": "1", "name": "find", "arguments": '{"who": "x"}'},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c"}]},
            {"type": "function_call_output", "call_id": "1", "output": "none"},
        ],
    }
    job = read_responses(json.dumps(body).encode()).prompts
    assert job.messages == [  # type: ignore[union-attr]
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {
            "role": "assistant",
            "content": "b",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "find", "arguments": {"who": "x"}}}
            ],
        },
        {"role": "assistant", "content": "c"},
        {"role": "tool", "tool_call_id": "1", "content": "none"},
    ]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"store": True}, "stores no response"),
        ({"previous_response_id": "r"}, "stores no response"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "'item_reference' is not supported"),
        ({"input": []}, "length"),
        ({"tools": [{"type": "web_search"}]}, "only tools of type `function`"),
        ({"tools": [FIND], "tool_choice": "required"}, "knows no tools"),
        ({"tools": [FIND], "tool_choice": {"type": "mcp"}}, "or names a function"),
        ({"tool_choice": "required"}, "needs `tools`"),
        ({"model": "other"}, "use `tiny`"),
        ({"seed": 1}, "`seed` is not known"),
    ],
)
async def test_what_a_response_can_not_be_is_refused(
    served: Served, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(openai.APIStatusError, match=said):
        await served.openai.post("/responses", cast_to=object, body={"input": "hi"} | fields)
