"""A client's request for a generation, the same for every dialect."""

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.choices import BestOf, count_choices, read_best_of
from millrace_runtime.api.request.openai_bodies import GenerationBody
from millrace_runtime.api.request.sampling import AUTHOR_FIELDS, build_sampling, read_sampling
from millrace_runtime.api.request.structured_outputs import read_grammar
from millrace_runtime.chat.jobs import TextJob
from millrace_runtime.chat.model_files import AuthorDefaults
from millrace_runtime.grammar.source import GrammarSource
from millrace_runtime.protocol.encoding import pack_tokens
from millrace_runtime.protocol.sampling import Sampling

_SEED_BITS = 63
_SEED_MASK = (1 << _SEED_BITS) - 1


@dataclass(frozen=True)
class AnswerWish:
    """The form of an answer: which parts it has, and which tools it may call."""

    is_chat: bool = False
    """Whether the answer is a message; else all of it is content."""
    tools: list[dict[str, Any]] | None = None
    """The tools that the model may call, as the client sent them; None: none."""
    forced: str | None = None
    """The tool that must be called; empty: any of them; None: none must."""
    strict: tuple[str, ...] = ()
    """The tools whose calls must fit their schema, by name."""
    is_one_call: bool = False
    """Whether only the first call counts."""
    splits_reasoning: bool = False
    """Whether reasoning is no part of the content."""
    shows_reasoning: bool = True
    """Whether the client gets the reasoning."""
    echo: bytes = b"{}"
    """The fields of the request that its answer repeats, as JSON."""


@dataclass(frozen=True)
class PromptWish:
    """Which parts of its prompts an answer has, and what the prompts are made of."""

    is_echoed: bool = False
    """Whether each text begins with its prompt."""
    texts: tuple[str, ...] = ()
    """The echoed prompts as the client wrote them; empty if the client sent token ids."""
    has_leading: bool = False
    """Whether each begins with the special tokens that the tokenizer adds before a text."""
    num_logprobs: int | None = None
    """Likely tokens beside each token of a whole answer's `prompt_logprobs`; None: it has none."""
    shows_pieces: bool = False
    """Whether `/tokenize` returns each token as the vocabulary spells it."""


@dataclass(frozen=True)
class GenerationRequest:
    """A validated request without its prompts."""

    num_prompts: int
    model: str | None
    num_choices: int
    """Answers to each prompt that are drawn."""
    max_tokens: int | None
    """None if the client sets no limit."""
    default_max_tokens: int
    """The limit for a client that sets none. The model's length may leave room for fewer."""
    sampling: Sampling
    """Its seed is ignored: each sequence gets its own from `seed_of`."""
    unset: tuple[str, ...]
    """Fields of `sampling` that the client leaves open: the model's author may set them."""
    allowed_ids: bytes | None
    """The only tokens that may be drawn, packed, because they may be 262,144; None: all."""
    min_tokens: int
    """Tokens before one that ends the sequence."""
    answer: AnswerWish
    seed: int | None
    stops: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignores_end: bool
    is_streaming: bool
    keeps_stop: bool
    """Whether the text keeps the stop string or token that ended it."""
    hides_special: bool
    """Whether special tokens are left out of the text."""
    includes_usage: bool
    """Whether a stream's last chunk has the usage."""
    includes_usage_so_far: bool
    """Whether each chunk has the usage so far."""
    grammar: GrammarSource | None = None
    """The grammar that the text must fit."""
    bad_words: tuple[str, ...] = ()
    """Texts that the answer may not have."""
    bad_sequences: tuple[tuple[int, ...], ...] = ()
    """The texts among them of several tokens. `read_prompts` adds them; the others are in the bias."""
    max_prompt_tokens: int | None = None
    """A longer prompt loses its first tokens; -1: a prompt loses as many as it must to fit; None: none."""
    keeps_front: bool = False
    """Whether it loses its last tokens instead."""
    returns_token_ids: bool = False
    """Whether the answer has the tokens of prompt and text."""
    names_tokens_by_id: bool = False
    """Whether log-probabilities name tokens by their ids."""
    prompt: PromptWish = PromptWish()
    best_of: BestOf | None = None
    """None: all answers are returned."""
    cache_salt: str | None = None
    """Only requests with the same salt share computed prefixes."""
    priority: int = 0
    """A smaller one is computed first."""

    @property
    def num_sequences(self) -> int:
        """Choices of all prompts."""
        return self.num_prompts * self.num_choices

    @property
    def num_returned(self) -> int:
        """Answers to each prompt that the client gets."""
        return self.num_choices if self.best_of is None else self.best_of.num_kept

    def with_defaults(self, defaults: AuthorDefaults) -> "GenerationRequest":
        """Return the request with what the model's author recommends, where the client says nothing."""
        said = {name: value for name in self.unset if (value := getattr(defaults, name)) is not None}
        most = defaults.max_new_tokens or self.default_max_tokens
        return dataclasses.replace(
            self,
            sampling=build_sampling(msgspec.structs.asdict(self.sampling) | said),
            default_max_tokens=min(self.default_max_tokens, most),
        )

    def with_grammar_of(self, field: str) -> "GenerationRequest":
        """Return the request. Refusals of its grammar, if it has one, name `field`."""
        if self.grammar is None:
            return self
        return dataclasses.replace(self, grammar=dataclasses.replace(self.grammar, field=field))

    def seed_of(self, choice: int) -> int:
        """Return the seed of a prompt's choice: the client's plus the choice's number, or a random one."""
        if self.seed is None:
            return random.getrandbits(_SEED_BITS)
        return (self.seed + choice) & _SEED_MASK


class Reading(NamedTuple):
    """A body's request and its prompts."""

    request: GenerationRequest
    prompts: TextJob | list[list[int]]
    """A job for the text worker, or token ids."""


def list_strict(tools: Sequence[Mapping[str, Any]] | None) -> tuple[str, ...]:
    """Return the names of the strict tools. OpenAI's chats have a tool's fields in its `function`."""
    flat = [tool.get("function", tool) for tool in tools or ()]
    return tuple([str(tool["name"]) for tool in flat if tool.get("strict") is True])


def build_request(
    body: GenerationBody,
    num_prompts: int,
    max_tokens: int | None,
    default_max_tokens: int,
    num_logprobs: int | None,
    *,
    answer: AnswerWish = AnswerWish(),
    prompt: PromptWish = PromptWish(),
) -> GenerationRequest:
    """Return the request of a decoded body. Raises BadRequestError for too many sequences and the like."""
    best_of = read_best_of(body, is_chat=answer.is_chat)
    num_choices = count_choices(body, best_of, num_prompts)
    if body.truncate_prompt_tokens == 0:
        raise BadRequestError(
            "`truncate_prompt_tokens` is 0: keep at least one token, or -1 for as many as fit",
            param="truncate_prompt_tokens",
        )
    _check_prompt_wish(body, prompt, max_tokens)
    if max_tokens is not None and (body.min_tokens or 0) > max_tokens:
        raise BadRequestError(
            f"`min_tokens` is {body.min_tokens}, and at most {max_tokens} are asked for", param="min_tokens"
        )
    if body.allowed_token_ids is not None and not body.allowed_token_ids:
        raise BadRequestError("`allowed_token_ids` allows no token", param="allowed_token_ids")
    options = body.stream_options
    includes_usage = bool(options and options.include_usage)
    if includes_usage and not body.stream:
        raise BadRequestError("`stream_options` needs `stream: true`", param="stream_options")
    return GenerationRequest(
        num_prompts=num_prompts,
        model=body.model,
        num_choices=num_choices,
        max_tokens=max_tokens,
        default_max_tokens=default_max_tokens,
        sampling=read_sampling(body, num_logprobs, _count_prompt_logprobs(prompt, num_logprobs)),
        # `top_p: 0` says how to draw: the author's temperature does not count beside it.
        unset=() if body.top_p == 0 else tuple(name for name in AUTHOR_FIELDS if getattr(body, name) is None),
        allowed_ids=None if body.allowed_token_ids is None else pack_tokens(body.allowed_token_ids),
        min_tokens=body.min_tokens or 0,
        answer=answer,
        seed=body.seed,
        stops=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignores_end=bool(body.ignore_eos),
        is_streaming=bool(body.stream),
        keeps_stop=bool(body.include_stop_str_in_output),
        hides_special=body.skip_special_tokens is not False,
        includes_usage=includes_usage,
        includes_usage_so_far=includes_usage and bool(options and options.continuous_usage_stats),
        grammar=read_grammar(body),
        bad_words=tuple(body.bad_words or ()),
        max_prompt_tokens=body.truncate_prompt_tokens,
        keeps_front=body.truncation_side == "right",
        returns_token_ids=bool(body.return_token_ids),
        names_tokens_by_id=bool(body.return_tokens_as_token_ids),
        prompt=prompt,
        best_of=best_of,
        cache_salt=body.cache_salt,
        priority=body.priority or 0,
    )


def _check_prompt_wish(body: GenerationBody, prompt: PromptWish, max_tokens: int | None) -> None:
    if prompt.num_logprobs is not None and body.stream:
        raise BadRequestError(
            "`prompt_logprobs` are no part of a stream: leave out `stream`", param="prompt_logprobs"
        )
    if max_tokens == 0 and prompt.num_logprobs is None and not prompt.is_echoed:
        raise BadRequestError(
            "`max_tokens` may be 0 only with `echo` or `prompt_logprobs`: ask for at least 1 token",
            param="max_tokens",
        )


def _count_prompt_logprobs(prompt: PromptWish, num_logprobs: int | None) -> int | None:
    """Return how many likely tokens the engine scores beside each token of a prompt; None: no scores."""
    wanted = [prompt.num_logprobs, num_logprobs if prompt.is_echoed else None]
    return max((number for number in wanted if number is not None), default=None)


def encode_request(request: GenerationRequest) -> bytes:
    """Return the request in MessagePack."""
    return msgspec.msgpack.encode(request)


def decode_request(data: bytes) -> GenerationRequest:
    """Return the request that `encode_request` encoded."""
    return msgspec.msgpack.decode(data, type=GenerationRequest)
