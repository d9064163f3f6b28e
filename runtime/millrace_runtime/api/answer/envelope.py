"""What every chunk and answer of one request has in common, encoded once."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from millrace_runtime.api.generation import Usage

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Envelope:
    """The fields around a request's choices."""

    request_id: str
    created: int
    """Unix time, seconds."""
    model: str
    includes_usage: bool
    """Whether a last chunk has the usage; then the others have `"usage": null`."""

    def chunk_head(self, object_name: str) -> bytes:
        """Return a chunk up to the inside of its list of choices."""
        return b"data: " + orjson.dumps(self._fields(object_name))[:-1] + b',"choices":['

    @property
    def chunk_tail(self) -> bytes:
        """Return a chunk from the end of its list of choices."""
        return b'],"usage":null}\n\n' if self.includes_usage else b"]}\n\n"

    def encode_usage_chunk(self, object_name: str, usage: Usage) -> bytes:
        """Return the chunk that has the usage and no choices."""
        body = self._fields(object_name) | {"choices": [], "usage": usage_fields(usage)}
        return b"data: " + orjson.dumps(body) + b"\n\n"

    def encode_answer(self, object_name: str, choices: Iterable[list[bytes]], usage: Usage) -> bytes:
        """Return a whole answer's JSON. A choice is its JSON in pieces, which are copied once."""
        pieces = [orjson.dumps(self._fields(object_name))[:-1], b',"choices":[']
        for number, choice in enumerate(choices):
            pieces += [b",", *choice] if number else choice
        pieces += [b'],"usage":', orjson.dumps(usage_fields(usage)), b"}"]
        return b"".join(pieces)

    def _fields(self, object_name: str) -> dict[str, Any]:
        return {
            "id": self.request_id,
            "object": object_name,
            "created": self.created,
            "model": self.model,
        }


def usage_fields(usage: Usage) -> dict[str, int]:
    """Return OpenAI's usage object."""
    prompt, completion = usage
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def encode_reason(reason: str | None) -> bytes:
    """Return a finish reason as JSON."""
    return b"null" if reason is None else b'"' + reason.encode() + b'"'
