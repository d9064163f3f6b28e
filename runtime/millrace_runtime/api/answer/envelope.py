"""The fields around a request's choices, and the JSON around them in OpenAI's two older dialects."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from millrace_runtime.api.usage import Usage


@dataclass(frozen=True)
class Envelope:
    """The fields around a request's choices."""

    request_id: str
    created: int
    """Unix time, seconds."""
    model: str
    includes_usage: bool
    """Whether a last chunk has the usage; then the others have `"usage": null`."""
    tools: list[dict[str, Any]] | None = None
    """The tools of the request, which some dialects repeat."""
    has_prompt_logprobs: bool = False
    """Whether a whole answer has its prompts' log-probabilities."""
    echo: bytes = b"{}"
    """The fields of the request that some dialects repeat, as JSON."""
    temperature: float = 1.0
    top_p: float = 1.0
    """How the tokens are drawn, for a request that does not say."""
    prompt_ids: tuple[bytes, ...] | None = None
    """The tokens of each choice's prompt as JSON, if the answer has token ids; None: it has none."""

    @property
    def num_bytes(self) -> int:
        """Bytes that an answer holds beside its own text."""
        return len(self.echo) + sum(map(len, self.prompt_ids or ()))

    def chunk_head(self, object_name: str) -> bytes:
        """Return the beginning of a chunk, up to its first choice."""
        return b"data: " + orjson.dumps(self._fields(object_name))[:-1] + b',"choices":['

    @property
    def chunk_tail(self) -> bytes:
        """Return the end of a chunk, after its last choice."""
        return b'],"usage":null}\n\n' if self.includes_usage else b"]}\n\n"

    def encode_tail(self, usage: Usage) -> bytes:
        """Return a chunk from the end of its list of choices, with the usage so far."""
        return b'],"usage":' + orjson.dumps(_usage_fields(usage)) + b"}\n\n"

    def encode_usage_chunk(self, object_name: str, usage: Usage) -> bytes:
        """Return the chunk with the usage and without choices."""
        body = self._fields(object_name) | {"choices": [], "usage": _usage_fields(usage)}
        return b"data: " + orjson.dumps(body) + b"\n\n"

    def encode_answer(
        self, object_name: str, choices: Iterable[list[bytes]], usage: Usage, others: list[bytes]
    ) -> bytes:
        """Return a whole answer's JSON, with `others` as its last fields.

        They and each choice come in pieces, so that they are copied once.
        """
        pieces = [orjson.dumps(self._fields(object_name))[:-1], b',"choices":[']
        for number, choice in enumerate(choices):
            pieces += [b",", *choice] if number else choice
        pieces += [b'],"usage":', orjson.dumps(_usage_fields(usage)), *others, b"}"]
        return b"".join(pieces)

    def _fields(self, object_name: str) -> dict[str, Any]:
        return {
            "id": self.request_id,
            "object": object_name,
            "created": self.created,
            "model": self.model,
        }


def _usage_fields(usage: Usage) -> dict[str, Any]:
    """Return OpenAI's usage object."""
    prompt, completion = usage.num_prompt_tokens, usage.num_completion_tokens
    fields: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
    }
    if usage.num_reasoning_tokens is not None:
        fields["completion_tokens_details"] = {"reasoning_tokens": usage.num_reasoning_tokens}
    return fields
