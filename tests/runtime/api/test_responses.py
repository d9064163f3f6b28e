"""POST /v1/responses as OpenAI's client speaks it, and as Codex does."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
from openai.types.responses import Response

from millrace_runtime.api.answer.custom_tool_input import FreeTextReader
from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.generation_request import encode_request
from millrace_runtime.api.request.openai_bodies import GenerationBody
from millrace_runtime.api.request.responses.body import Ignored, ResponsesBody, read_responses
from millrace_runtime.chat.jobs import RenderChat
from testing.scripted_replica import SERVED_NAME, serve_script
from tests.runtime.api.scripted import CALL, SCHEMA, serve_answer
from tests.runtime.api.served import REPLY, Served

FIND: dict[str, Any] = {"type": "function", "name": "find", "parameters": SCHEMA, "strict": False}
PATCH: dict[str, Any] = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
FILES: dict[str, Any] = {
    "type": "namespace",
    "name": "mcp__files",
    "description": "Files.",
    "tools": [FIND | {"name": "read"}],
}
SEARCH = {"type": "web_search", "external_web_access": False}
CODEX: dict[str, Any] = {
    "model": SERVED_NAME,
    "instructions": "You are Codex.",
    "tools": [
        FIND,
        PATCH,
        SEARCH,
        {"type": "local_shell"},
        FILES,
        {"type": "tool_search", "execution": "client"},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto", "context": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "1234",
    "text": {"verbosity": "low"},
    "service_tier": "priority",
    "client_metadata": {"x-codex-installation-id": "1"},
}
"""What Codex sends beside its `input`."""
DIFF = '*** Begin Patch\n+"né 😀"\n*** End Patch'


def say(role: str, content: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": content}]}


def read(**fields: Any) -> tuple[Any, RenderChat]:
    request, prompt = read_responses(json.dumps({"input": "hi"} | fields).encode())
    assert isinstance(prompt, RenderChat)
    return request, prompt


async def test_an_error_in_a_stream_has_the_next_number(served: Served) -> None:
    served.engine.pauses_after = 2
    numbers, kinds = [], []
    body = {"input": "hi", "stream": True, "max_output_tokens": 50}
    async with served.client.stream("POST", "/v1/responses", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                event = msgspec.json.decode(line.removeprefix("data: "))
                numbers.append(event["sequence_number"])
                kinds.append(event["type"])
                served.engine.fails_sequences, served.engine.pauses_after = True, None
    assert (kinds[:2], kinds[-1]) == (["response.created", "response.in_progress"], "error")
    assert numbers == list(range(len(numbers)))


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
    long = await served.client.post("/v1/responses", json={"input": "x" * 300, "truncation": "auto"})
    assert long.json()["usage"]["input_tokens"] == 150
    await served.client.post(
        "/v1/responses", json={"input": "hi", "seed": 7, "top_k": 3, "stop": "stöp", "min_p": 0.5}
    )
    sampling = served.engine.seen[-1].sequences[0].sampling
    assert (sampling.seed, sampling.top_k, sampling.min_p) == (7, 3, 0.5)


ECHOED: dict[str, Any] = {
    "instructions": "Be brief.",
    "max_output_tokens": 5,
    "metadata": {"a": "b"},
    "parallel_tool_calls": False,
    "prompt_cache_key": "1234",
    "reasoning": {"effort": "low", "summary": "auto"},
    "temperature": 0.5,
    "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}, "verbosity": "low"},
    "tool_choice": "none",
    "top_p": 0,
    "truncation": "auto",
}


@pytest.mark.parametrize("size", [0, 200_000], ids=["small", "in the text worker"])
async def test_a_response_repeats_its_request(served: Served, size: int) -> None:
    for fields in (ECHOED, {}):
        asked = {"input": "hi", "user": "x" * size} | fields
        whole = await served.client.post("/v1/responses", json=asked)
        streamed = await served.client.post("/v1/responses", json=asked | {"stream": True})
        events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: ")]
        for body in (whole.json(), *(event["response"] for event in events if "response" in event)):
            assert fields == {name: body[name] for name in fields}
            Response.model_validate(body, strict=True)
            assert fields or (body["tool_choice"], body["top_p"]) == ("auto", 1)


async def test_reasoning_text_and_calls_are_items_whole_and_streamed(tmp_path: Path) -> None:
    async with serve_answer(tmp_path, "<think>\nHm.\n</think>\n\nI look.\n" + CALL) as served:
        responses = served.openai.responses
        whole = await responses.create(model="tiny", input="hi", tools=[FIND])
        assert [item.type for item in whole.output] == ["reasoning", "message", "function_call"]
        reasoning, message, call = whole.output
        assert (reasoning.content[0].text, message.content[0].text) == ("Hm.", "I look.\n")
        assert (call.name, json.loads(call.arguments)) == ("find", {"who": "Zoë"})
        async with responses.stream(model="tiny", input="hi", tools=[FIND]) as stream:
            events = [event async for event in stream]
            kinds = [event.type for event in events]
            extras = {(event.type, name) for event in events for name in event.model_extra or ()}
            assert extras == {("response.function_call_arguments.done", "name")}, "which older clients know"
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
        hidden = await responses.create(model="tiny", input="hi", extra_body={"include_reasoning": False})
        assert [item.type for item in hidden.output] == ["message"]


async def test_a_call_that_was_cut_is_incomplete(tmp_path: Path) -> None:
    async with serve_answer(tmp_path, f"I look. {CALL}") as served:
        ask: dict[str, Any] = {"input": "hi", "tools": [FIND]}
        whole = Response.model_validate((await served.client.post("/v1/responses", json=ask)).json())
        assert whole.usage is not None
        ask["max_output_tokens"] = whole.usage.output_tokens - 25
        answer = (await served.client.post("/v1/responses", json=ask)).json()
        cut = Response.model_validate(answer)
        streamed = (await served.client.post("/v1/responses", json=ask | {"stream": True})).text
        last = json.loads(streamed.strip().split("data: ")[-1])["response"]
    assert [item["status"] for item in answer["output"]] == ["completed", "incomplete"]
    assert [(item.type, item.status) for item in whole.output][1] == ("function_call", "completed")
    assert cut.incomplete_details is not None
    assert [item["status"] for item in last["output"]] == ["completed", "incomplete"]


async def test_codex_works_in_its_loop_of_calls(tmp_path: Path) -> None:
    """Each turn sends the items of the former ones, as they came in the events."""
    arguments = json.dumps({"input": DIFF})
    answers = {
        "Fix it": f"<think>\nLook.\n</think>\n\nI look.{CALL}",
        "a.txt": '<tool_call>{"name": "mcp__files__read", "arguments": {"who": "a.txt"}}</tool_call>',
        "old line": f'<tool_call>{{"name": "apply_patch", "arguments": {arguments}}}</tool_call>',
        "Done!": "It is fixed.",
    }
    outputs = iter(["a.txt", [{"type": "input_text", "text": "old line"}], "Done!"])
    items = [say("developer", "Ask nobody."), say("user", "# AGENTS.md"), say("user", "Fix it")]
    calls: list[dict[str, Any]] = []
    async with (
        serve_script(tmp_path, answers) as replica,
        httpx.AsyncClient(base_url=replica.url, timeout=20) as client,
    ):
        while not calls or "call_id" in calls[-1]:
            answer = await client.post("/v1/responses", json=CODEX | {"input": items})
            assert answer.status_code == 200, answer.text
            lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
            events = [json.loads(line) for line in lines]
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
            assert events[-1]["response"]["output"] == done
            items += done
            calls.append(done[-1])
            if "call_id" in calls[-1]:
                kind = calls[-1]["type"].replace("_call", "_call_output")
                items.append({"type": kind, "call_id": calls[-1]["call_id"], "output": next(outputs)})
            if calls[-1]["type"] == "custom_tool_call":
                deltas = [event["delta"] for event in events if event["type"].endswith("input.delta")]
                assert "".join(deltas) == DIFF
                assert len(deltas) > 1
    names = [(call.get("namespace"), call.get("name")) for call in calls]
    assert names == [(None, "find"), ("mcp__files", "read"), (None, "apply_patch"), (None, None)]
    assert (calls[2]["input"], calls[3]["content"][0]["text"]) == (DIFF, "It is fixed.")
    assert events[-1]["response"]["tools"] == [FIND, PATCH, FILES]


def test_items_become_the_messages_that_templates_know() -> None:
    passthrough = {"internal_chat_message_metadata_passthrough": {"turn_id": "1"}}
    call = {"type": "function_call", "call_id": "1", "name": "read", "arguments": '{"who": "x"}'}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAA"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "So."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        call | {"namespace": "mcp__files"} | passthrough,
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c"}]},
        {"type": "function_call_output", "call_id": "1", "output": "none"},
        {"type": "web_search_call", "status": "completed", "action": {"type": "search"}},
        {"type": "custom_tool_call", "call_id": "2", "name": "apply_patch", "input": DIFF},
        {"type": "custom_tool_call_output", "call_id": "2", "output": [
            {"type": "input_text", "text": "ok"}, {"type": "input_image", "image_url": "data:"}]},
        {"type": "local_shell_call", "call_id": "3", "action": {"type": "exec"}},
        {"type": "local_shell_call_output", "id": "3", "output": "ok"},
        {"type": "shell_call", "call_id": "4", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "4", "output": [
            {"stdout": "a\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
        {"type": "apply_patch_call", "call_id": "5", "operation": {"type": "delete_file", "path": "a"}},
        {"type": "apply_patch_call_output", "call_id": "5", "status": "completed"},
        {"type": "mcp_approval_request", "id": "6", "name": "x", "arguments": "", "server_label": "s"},
        {"type": "mcp_approval_response", "approval_request_id": "6", "approve": True},
        {"type": "agent_message", "author": "x", "recipient": "y", "content": [
            {"type": "encrypted_content", "encrypted_content": "gAAA"}, {"type": "input_text", "text": "d"}]},
    ]  # fmt: skip

    def write(number: int, name: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        function = {"name": name, "arguments": arguments}
        return [{"id": str(number), "type": "function", "function": function}]

    assert read(instructions="S", input=items)[1].messages == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {
            "role": "assistant",
            "content": "b\nc",
            "reasoning_content": "Hm.\nSo.",
            "tool_calls": write(1, "mcp__files__read", {"who": "x"}),
        },
        {"role": "tool", "tool_call_id": "1", "content": "none"},
        {"role": "assistant", "content": "", "tool_calls": write(2, "apply_patch", {"input": DIFF})},
        {
            "role": "tool",
            "tool_call_id": "2",
            "content": "ok\n[image left out: this model reads text alone]",
        },
        {"role": "assistant", "content": "", "tool_calls": write(3, "local_shell", {"type": "exec"})},
        {"role": "tool", "tool_call_id": "3", "content": "ok"},
        {"role": "assistant", "content": "", "tool_calls": write(4, "shell", {"commands": ["ls"]})},
        {
            "role": "tool",
            "tool_call_id": "4",
            "content": '{"stdout":"a\\n","stderr":"","outcome":{"type":"exit","exit_code":0}}',
        },
        {
            "role": "assistant",
            "content": "",
            "tool_calls": write(5, "apply_patch", {"type": "delete_file", "path": "a"}),
        },
        {"role": "tool", "tool_call_id": "5", "content": "completed"},
        {"role": "user", "content": "d"},
    ]


@pytest.mark.parametrize(
    ("instructions", "roles", "messages"),
    [
        ("S", "u", ["system S", "user u0"]),
        ("S", "dsuu", ["system S\n\nd0\n\ns1", "user u2\n\nu3"]),
        ("", "du", ["developer d0", "user u1"]),
        (None, "sdau", ["system s0\n\nd1", "assistant a2", "user u3"]),
        (None, "uads", ["user u0", "assistant a1", "user d2\n\ns3"]),
        ("S", "audua", ["system S", "assistant a0", "user u1\n\nd2\n\nu3", "assistant a4"]),
        (None, "uaau", ["user u0", "assistant a1\na2", "user u3"]),
    ],
)
def test_a_template_gets_one_message_of_the_system_and_one_in_each_turn(
    instructions: str | None, roles: str, messages: list[str]
) -> None:
    names = {"s": "system", "d": "developer", "u": "user", "a": "assistant"}
    items = [{"role": names[role], "content": f"{role}{place}"} for place, role in enumerate(roles)]
    read_in = read(instructions=instructions, input=items)[1].messages
    assert [f"{message['role']} {message['content']}" for message in read_in] == messages
    in_parts = read(instructions=instructions, input=[say(**item) for item in items])[1].messages
    assert [message["role"] for message in in_parts] == [message["role"] for message in read_in]


def name(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "name": name}


DEEP: list[Any] = []
for _ in range(300):
    DEEP = [DEEP]
READ, PATCHES = "mcp__files__read", "apply_patch"
EXACT = FIND | {"name": READ}
LOADED = [say("user", "a"), {"type": "additional_tools", "role": "developer", "tools": [FILES, FIND]}]

ALLOWED = {
    "type": "allowed_tools",
    "mode": "required",
    "tools": [name("namespace", "mcp__files"), SEARCH, name("custom", PATCHES)],
}


@pytest.mark.parametrize(
    ("fields", "names", "forced"),
    [
        ({"tools": [FIND, SEARCH, PATCH, FILES]}, ["find", "apply_patch", READ], None),
        ({"tools": [SEARCH]}, None, None),
        ({"tools": [FIND], "tool_choice": "none"}, None, None),
        ({"tools": [FIND], "input": LOADED}, ["find", READ], None),
        ({"tools": [SEARCH, PATCH], "tool_choice": "required"}, ["apply_patch"], ""),
        ({"tools": [PATCH, FILES], "tool_choice": name("custom", PATCHES)}, [PATCHES, READ], PATCHES),
        ({"tools": [FILES], "tool_choice": name("function", "read")}, [READ], READ),
        (
            {"tools": [FILES, FIND | {"name": "read"}], "tool_choice": name("function", "read")},
            [READ, "read"],
            "read",
        ),
        ({"tools": [FIND, FILES, PATCH], "tool_choice": ALLOWED}, [READ, "apply_patch"], ""),
    ],
)
def test_the_model_gets_the_tools_that_the_client_runs(
    fields: dict[str, Any], names: list[str] | None, forced: str | None
) -> None:
    request, prompt = read(**fields)
    shown = prompt.tools and [tool["function"]["name"] for tool in prompt.tools]
    assert (shown, request.answer.forced) == (names, forced)
    assert all(tool.keys() == {"type", "function"} for tool in prompt.tools or ())


def test_a_custom_tool_is_a_function_with_one_text_for_the_model() -> None:
    request, prompt = read(tools=[PATCH, FIND | {"strict": True}], reasoning={"effort": "none"})
    [patch, _] = prompt.tools or ()
    assert patch["function"]["parameters"]["required"] == ["input"]
    assert patch["function"]["description"].startswith("Edits files.\n\n")
    assert PATCH["format"]["definition"] in patch["function"]["description"]
    assert request.answer.strict == ("find",)
    assert prompt.variables == {"reasoning_effort": "none", "enable_thinking": False, "thinking": False}
    assert read(enable_thinking=True)[1].variables == {"enable_thinking": True, "thinking": True}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (json.dumps({"input": DIFF}), DIFF),
        ('{ "input" : "a\\/\\u00e9\\ud83d\\ude00\t" , "x": 1}', "a/é😀\t"),
        ('{"input": "a\\ud83d b"}', "a\ufffd b"),
        ('{"input": "cut \\u00', "cut "),
        (r'{"input": "it\'s \d END"}', r"it\'s \d END"),
        (r'{"input": "echo "hi" > C:\Users\me"} ', r'echo "hi" > C:\Users\me'),
        ('{"text": "a"}', '{"text": "a"}'),
        ('{"x": 1, "input": "a"}', "a"),
        ("", ""),
    ],
)
def test_the_text_of_a_custom_tool_does_not_depend_on_where_it_is_cut(arguments: str, text: str) -> None:
    for size in range(1, len(arguments) + 2):
        reader = FreeTextReader()
        pieces = [reader.feed(arguments[at : at + size]) for at in range(0, len(arguments), size)]
        assert "".join([*pieces, reader.finish()]) == reader.text == text


def test_fields_that_all_dialects_share_have_the_same_types() -> None:
    shared = {field.name: field.type for field in msgspec.structs.fields(GenerationBody)}
    mine = {field.name: field.type for field in msgspec.structs.fields(ResponsesBody)}
    assert {"seed", "top_k", "logit_bias", "structured_outputs"} <= mine.keys() & shared.keys()
    of_others = {
        "chat_template_kwargs",
        "enable_thinking",
        "metadata",
        "prompt_cache_key",
        "reasoning",
        "stream_options",
        "store",
        "tools",
    }
    for name in mine.keys() & shared.keys() - of_others:
        assert mine[name] == shared[name], name


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"store": True}, "stores no response"),
        ({"previous_response_id": "r"}, "stores no response"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "providerOptions.openai.store"),
        (
            {"input": [say("assistant", "a") | {"tool_calls": [{}], "tool_call_id": None}]},
            "`tool_calls` is no field .* `function_call`",
        ),
        ({"input": [{"role": "tool", "tool_call_id": "1", "content": "a"}]}, "`function_call_output`"),
        ({"include": ["message.output_text.logprobs"]}, "`include`.* /v1/chat/completions"),
        ({"input": [{"type": ["shell_call"], "call_id": "1"}]}, "shell_call.* is not supported"),
        ({"input": [{"type": "shell_call", "call_id": "1"}]}, "'shell_call' is not supported"),
        ({"input": [{"type": "function_call_output", "call_id": "1"}]}, "'function_call_output' is not"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "'compaction' is not supported"),
        ({"input": [LOADED[1]]}, "has no message"),
        ({"input": []}, "length"),
        ({"tools": [{"name": "x"}]}, "`tools\\[0\\]` must be an object with a `type`"),
        ({"tools": [SEARCH, {"type": "function"}]}, "`name` - in `tools\\[1\\]`"),
        ({"tools": [FILES | {"tools": [{"type": "custom"}]}]}, "in `tools\\[0\\].tools\\[0\\]`"),
        ({"tools": [FILES, EXACT]}, f"two `tools` are `{READ}`"),
        ({"tools": [FIND], "tool_choice": "required"}, "knows no tools"),
        ({"tools": [FIND], "tool_choice": {"type": "web_search"}}, "leaves these out"),
        ({"tools": [FIND], "tool_choice": {"type": "function", "name": "no"}}, "the tools are \\['find'\\]"),
        ({"tools": [FIND], "tool_choice": "some"}, "or name a function"),
        ({"tools": [SEARCH], "tool_choice": "required"}, "leaves out all others"),
        ({"tool_choice": "required"}, "needs `tools`"),
        ({"input": [say("user", "a"), {"role": "user", "content": [{"type": "input_image"}]}]}, "text"),
        ({"moderation": {"model": "x"}}, "let a model of your own"),
        ({"truncation": "some"}, "truncation"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {str(number): "a" for number in range(17)}}, "in `metadata`"),
        ({"metadata": {"a": "x" * 513}}, "in `metadata"),
        ({"prompt_cache_key": "x" * 513}, "in `prompt_cache_key`"),
        (
            {"tools": [FIND], "tool_choice": name("function", "find") | {"x": DEEP}},
            "`tool_choice` goes more than",
        ),
        ({"top_logprobs": 1}, "/v1/chat/completions"),
        (
            {"structured_outputs": {"regex": "a"}, "text": {"format": {"type": "json_object"}}},
            "exclude each other",
        ),
        ({"text": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "`text.format` can't be used"),
        ({"model": "other"}, "use `tiny`"),
        ({"n": 2}, "`n` is not known"),
    ],
)
async def test_what_a_response_can_not_be_is_refused(
    served: Served, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(openai.APIStatusError, match=said):
        await served.openai.post("/responses", cast_to=object, body={"input": "hi"} | fields)


def test_the_page_has_each_field_that_is_ignored() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "requests.md").read_text()
    section = page.split("## Codex and OpenAI's responses")[1].split("\n## ")[0]
    ignored = section.split("Ignored:")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", ignored)) == set(Ignored.__struct_fields__)
    assert read(**{name: {"x": 1} for name in Ignored.__struct_fields__}) == read()


def test_a_namespace_holds_so_many_functions() -> None:
    many = [FIND | {"name": f"f{number}"} for number in range(1024)]
    request, prompt = read(tools=[FILES | {"tools": many, "description": "x" * 4096}])
    assert len(prompt.tools or ()) == 1024
    assert len(encode_request(request)) < 1 << 20, "its description is there once"
    with pytest.raises(BadRequestError, match="has 1025 functions"):
        read(tools=[FIND, FILES | {"tools": many}])
