"""The bodies of OpenAI's requests. Every number, list and string has a limit.

- Fields with a type are supported.
- `Unsupported` has fields that would change the answer, but that clients also send with a harmless default.
  `unsupported_fields.py` knows these defaults, and refuses any other value.
- `Harmless` has fields that change no answer. The server ignores them.
- The server refuses any other field by name, as OpenAI's own servers do. A client that asks for a grammar or
  a sampler in the spelling of vLLM, SGLang, llama.cpp or TGI must learn that it gets none, and a list of all
  their spellings would never be complete.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from millrace_runtime.api.request.reasoning import Effort, ReasoningWish, ThinkingSwitch
from millrace_runtime.api.request.structured_outputs import GrammarFields

MAX_SEQUENCES = 128
"""Prompts times choices of one request. It bounds the memory of an answer; OpenAI takes as many choices."""
MAX_STOPS = 16
"""OpenAI and vLLM take four. So many of the longest ones are an automaton of 1.3 MB."""
MAX_TOP_LOGPROBS = 20
MAX_TOOLS = 1024
"""OpenAI takes 128. Agents send the tools of all their servers."""
MAX_BIASED = 1024
MAX_ALLOWED = 1 << 18
MAX_BAD_WORDS = 128
_INT63 = 2**63 - 1
_INT31 = 2**31 - 1

Name = Annotated[str, Meta(max_length=256)]
TokenCount = Annotated[int, Meta(ge=1, le=_INT31)]
TokenLimit = Annotated[int, Meta(ge=0, le=_INT31)]
TokenId = Annotated[int, Meta(ge=0, le=_INT31)]
FunctionName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
"""Twice as long as OpenAI's: agents write the name of a tool's server before its own."""
LogitBias = Annotated[float, Meta(ge=-100, le=100)]
TopLogprobs = Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Repetition = Annotated[float, Meta(ge=0.01, le=100)]
"""vLLM takes any above 0. Beyond these bounds a logit could leave the numbers of a float."""
Messages = Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=4096)]
Tools = Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)]
Documents = Annotated[list[dict[str, Any]], Meta(max_length=1024)]
Variables = Annotated[dict[str, Any], Meta(max_length=64)]
"""Of the chat template."""
StopString = Annotated[str, Meta(min_length=1, max_length=256)]
CacheSalt = Annotated[str, Meta(min_length=1, max_length=1024)]
Priority = Annotated[int, Meta(ge=-(2**31), le=2**31)]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The parts of a stream besides its text."""

    include_usage: bool | None = None
    include_obfuscation: Any = None
    """Ignored: padding that hides the lengths of a stream's chunks."""
    continuous_usage_stats: bool | None = None
    """The usage so far with each chunk."""


class Harmless(GrammarFields, kw_only=True):
    """Fields that change no answer: names of the user, notes, and hints for faster serving.

    `verbosity` is one that only models of OpenAI's know.
    """

    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    prediction: Any = None
    request_id: Any = None
    session_id: Any = None
    verbosity: Any = None
    guided_decoding_backend: Any = None
    stream_interval: Any = None
    return_mm_kwargs: Any = None
    return_token_offsets: Any = None


class Unsupported(Harmless, kw_only=True):
    """Fields that would change the answer and that this server does not support yet."""

    add_generation_prompt: Any = None
    audio: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    continue_final_message: Any = None
    documents: Any = None
    early_stopping: Any = None
    ec_transfer_params: Any = None
    echo: Any = None
    enable_thinking: Any = None
    function_call: Any = None
    functions: Any = None
    guided_whitespace_pattern: Any = None
    kv_transfer_params: Any = None
    length_penalty: Any = None
    logits_processors: Any = None
    logprob_token_ids: Any = None
    media_io_kwargs: Any = None
    mm_processor_kwargs: Any = None
    modalities: Any = None
    moderation: Any = None
    prompt_embeds: Any = None
    reasoning: Any = None
    reasoning_effort: Any = None
    repetition_detection: Any = None
    return_prompt_text: Any = None
    structural_tag: Any = None
    suffix: Any = None
    thinking: Any = None
    thinking_token_budget: Any = None
    tool_choice: Any = None
    tools: Any = None
    use_beam_search: Any = None
    vllm_xargs: Any = None
    web_search_options: Any = None


class GenerationBody(Unsupported, kw_only=True):
    """The parameters that all endpoints share. null means the default."""

    model: Name | None = None
    max_tokens: TokenLimit | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=_INT31)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-_INT63, le=_INT63)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_SEQUENCES)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_SEQUENCES)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=64)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    """Ignored: no text of ours has spaces between them that the model did not write."""
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=_INT31)] | None = None
    """The prompt's tokens that are kept; -1: as many as fit."""
    truncation_side: Literal["left", "right"] | None = None
    """Where the others are cut off; usually on the left."""
    repetition_penalty: Repetition | None = None
    logit_bias: Annotated[dict[str, LogitBias], Meta(max_length=MAX_BIASED)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_ALLOWED)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=_INT31)] | None = None
    bad_words: Annotated[list[StopString], Meta(max_length=MAX_BAD_WORDS)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prompt_logprobs: TopLogprobs | None = None
    cache_salt: CacheSalt | None = None
    priority: Priority | None = None


class CompletionBody(GenerationBody, kw_only=True):
    """POST /v1/completions."""

    prompt: str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)]
    logprobs: TopLogprobs | None = None
    echo: bool | None = None


class NamedFunction(msgspec.Struct):
    """The function that `tool_choice` names."""

    name: FunctionName


class NamedTool(msgspec.Struct, tag_field="type", tag="function"):
    """A `tool_choice` that names a function."""

    function: NamedFunction


class AllowedTools(msgspec.Struct):
    """Some of the tools, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedChoice(msgspec.Struct, tag_field="type", tag="allowed_tools"):
    """A `tool_choice` that names the tools that may be called."""

    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedChoice | None
"""Whether tools are called, and which."""


class Function(NamedFunction):
    """A function and its description. The chat template gets all further fields as they are."""

    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(msgspec.Struct):
    """A tool that the model may call."""

    type: Literal["function"]
    function: Function


class ChatBody(GenerationBody, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Messages
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Variables | None = None
    documents: Documents | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    enable_thinking: bool | None = None
    thinking: ThinkingSwitch | None = None
    reasoning: ReasoningWish | None = None
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None
    max_completion_tokens: TokenLimit | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
