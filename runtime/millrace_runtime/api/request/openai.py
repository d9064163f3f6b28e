"""Reads the bodies of POST /v1/completions and POST /v1/chat/completions.

Pure, so that the text worker can read large bodies.
"""

from typing import Any, cast

import msgspec

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.decoding import decode_body, refuse_invalid
from millrace_runtime.api.request.generation_request import (
    AnswerWish,
    PromptWish,
    Reading,
    build_request,
    list_strict,
)
from millrace_runtime.api.request.messages import (
    MAX_SCHEMA_DEPTH,
    check_depth,
    read_messages,
    rename_former_calls,
)
from millrace_runtime.api.request.openai_bodies import (
    MAX_SEQUENCES,
    AllowedChoice,
    ChatBody,
    CompletionBody,
    NamedTool,
    Tool,
    ToolChoice,
)
from millrace_runtime.api.request.reasoning import choose_variables, read_switches
from millrace_runtime.api.request.unsupported_fields import refuse_unsupported
from millrace_runtime.chat.jobs import EncodeTexts, RenderChat

_COMPLETION_TOKENS = 16
"""OpenAI's default."""
_CHAT_TOKENS = 2**31 - 1
"""As many as fit."""


def read_completion(data: bytes | bytearray) -> Reading:
    """Return the request and the prompts of a body of POST /v1/completions. Raises BadRequestError."""
    body = decode_body(data, CompletionBody)
    refuse_unsupported(body)
    prompts, num_prompts = _read_prompts(body)
    job = prompts if isinstance(prompts, EncodeTexts) else None
    prompt = PromptWish(
        is_echoed=bool(body.echo),
        texts=tuple(job.texts) if job and body.echo else (),
        has_leading=job is not None and job.adds_special_tokens,
        num_logprobs=body.prompt_logprobs,
    )
    request = build_request(
        body,
        num_prompts,
        body.max_tokens,
        _COMPLETION_TOKENS,
        body.logprobs,
        prompt=prompt,
    )
    return Reading(request, prompts)


def _read_prompts(body: CompletionBody) -> tuple[EncodeTexts | list[list[int]], int]:
    prompt = body.prompt
    if isinstance(prompt, str):
        prompt = [prompt]
    kinds = {type(item) for item in prompt}
    if kinds == {int}:
        return [cast("list[int]", prompt)], 1
    if len(kinds) > 1:
        raise BadRequestError("`prompt` mixes strings and token ids: send one kind", param="prompt")
    if len(prompt) > MAX_SEQUENCES:
        raise BadRequestError(
            f"`prompt` has {len(prompt)} items, and the limit is {MAX_SEQUENCES}: split the request",
            param="prompt",
        )
    if kinds != {str}:
        return cast("list[list[int]]", prompt), len(prompt)
    texts = cast("list[str]", prompt)
    job = EncodeTexts(
        texts, body.add_special_tokens is not False, is_cut=body.truncate_prompt_tokens is not None
    )
    return job, len(prompt)


def read_chat(data: bytes | bytearray) -> Reading:
    """Return the request and the prompt of a body of POST /v1/chat/completions. Raises BadRequestError."""
    body = decode_body(data, ChatBody)
    refuse_unsupported(body)
    if body.top_logprobs and not body.logprobs:
        raise BadRequestError("`top_logprobs` needs `logprobs: true`", param="top_logprobs")
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    tools = read_tools(body)
    answer = AnswerWish(
        is_chat=True,
        tools=tools,
        strict=list_strict(tools),
        forced=_read_forced(body),
        is_one_call=body.parallel_tool_calls is False,
        splits_reasoning=body.separate_reasoning is not False,
        shows_reasoning=body.include_reasoning is not False
        and not (body.reasoning and body.reasoning.exclude),
    )
    prompt = PromptWish(num_logprobs=body.prompt_logprobs)
    request = build_request(body, 1, max_tokens, _CHAT_TOKENS, num_logprobs, answer=answer, prompt=prompt)
    return Reading(request, read_conversation(body, tools))


def read_tools(body: ChatBody) -> list[dict[str, Any]] | None:
    """Return the tools that the model may call, or None. Raises BadRequestError naming what is wrong."""
    choice = body.tool_choice
    own = _read_own(body.tools or [])
    if not own:
        if choice not in (None, "none", "auto"):
            why = " of type `function`: this server leaves out all others" if body.tools else ""
            raise BadRequestError(f"`tool_choice` needs `tools`{why}", param="tool_choice")
        return None
    names, named = [name for _, name in own], _list_named(choice)
    for tool in named:
        if tool not in names:
            raise BadRequestError(
                f"`tool_choice` names `{tool}`, and the tools are {names}", param="tool_choice"
            )
    if choice == "none":
        return None
    return [tool for tool, name in own if name in named or not isinstance(choice, AllowedChoice)]


def _read_own(tools: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str]]:
    """Return the tools with their names, without those that other servers run: responses leave them out, too.

    Raises BadRequestError for a value that is no tool.
    """
    check_depth(tools, "tools", MAX_SCHEMA_DEPTH)
    own: list[tuple[dict[str, Any], str]] = []
    for place, tool in enumerate(tools):
        kind, where = tool.get("type", ""), f"tools[{place}]"
        if kind == "custom":
            raise BadRequestError(
                "tools of type `custom` are not supported: make it a `function` that takes one text",
                param=f"{where}.type",
                code="unsupported_parameter",
            )
        if kind in ("", "function") or "function" in tool or not isinstance(kind, str):
            own.append((tool, _read_name(tool, where)))
    return own


def _read_name(tool: dict[str, Any], where: str) -> str:
    try:
        return msgspec.convert([tool], list[Tool])[0].function.name
    except msgspec.ValidationError as error:
        raise refuse_invalid(str(error).replace("`$[0]", f"`$.{where}")) from error


def _list_named(choice: ToolChoice) -> list[str]:
    if isinstance(choice, AllowedChoice):
        return [tool.function.name for tool in choice.allowed_tools.tools]
    return [choice.function.name] if isinstance(choice, NamedTool) else []


def _read_forced(body: ChatBody) -> str | None:
    choice = body.tool_choice
    if isinstance(choice, NamedTool):
        return choice.function.name
    if isinstance(choice, AllowedChoice):
        choice = choice.allowed_tools.mode
    return "" if choice == "required" else None


def read_conversation(body: ChatBody, tools: list[dict[str, Any]] | None) -> RenderChat:
    """Return the job that makes the prompt of a body's conversation. Raises BadRequestError."""
    if body.continue_final_message and body.add_generation_prompt:
        raise BadRequestError(
            "`continue_final_message` and `add_generation_prompt` exclude each other: send one",
            param="continue_final_message",
        )
    check_depth(body.chat_template_kwargs, "chat_template_kwargs")
    check_depth(body.documents, "documents")
    return RenderChat(
        messages=read_messages(rename_former_calls(body.messages)),
        tools=tools,
        documents=body.documents,
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=bool(body.continue_final_message),
        variables=_choose_variables(body),
        adds_special_tokens=bool(body.add_special_tokens),
        is_cut=body.truncate_prompt_tokens is not None,
    )


def _choose_variables(body: ChatBody) -> dict[str, Any]:
    """Return the template's variables. Of several fields for the reasoning, the most exact one counts."""
    effort = body.reasoning_effort or (body.reasoning and body.reasoning.effort) or None
    thinks = read_switches(body.enable_thinking, body.thinking, body.reasoning)
    return choose_variables(effort, thinks=thinks, own=body.chat_template_kwargs)
