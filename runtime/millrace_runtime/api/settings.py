"""The settings of the HTTP process."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the supervisor loads the standard library only, and its flags need this module
    from millrace_runtime.chat.model_files import AuthorDefaults

TEXT_MODULE = "millrace_runtime.api.workers.text_process"
"""The module that the text worker runs. Nothing imports it here: loading templates takes 0.06 s a start."""
GRAMMAR_MODULE = "millrace_runtime.api.workers.grammar_process"
"""The module that the grammar worker runs."""


LEAST_KEEP_ALIVE_SECONDS = 10
"""An idle connection may be used for so long at least. Gateways use none that is half as old."""


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits on a connection's time and memory, beside those of its requests."""

    head_seconds: float = 10.0
    """From the start of the connection, or a later request's first byte, to the end of the head."""
    body_seconds: float = 60.0
    """For a request's body, and for the rest of a body that arrives after its answer."""
    keep_alive_seconds: int = 75
    """How long a connection may be idle between two requests. Gateways close theirs earlier, so no request of
    theirs meets a connection that closes: its sender could not know whether the request had begun."""
    write_stall_seconds: float = 60.0
    """The server disconnects a client that reads nothing of its buffered answer for so long. It notices this
    within twice that time."""
    max_head_bytes: int = 32 << 10
    """Request line and headers; more is answered 431."""
    max_headers: int = 100
    max_message_bytes: int = 1 << 20
    """A longer message closes a WebSocket: no part of it counts as memory before the whole has arrived."""


@dataclass(frozen=True)
class ApiSettings:
    """Limits and names of one replica's HTTP side."""

    served_name: str
    """The model's name in requests, answers and metric labels."""
    author_defaults: "AuthorDefaults | None" = None
    """The sampling of a request that says nothing about it."""
    tool_format: str | None = None
    """How the model writes tool calls, a key of TOOL_FORMATS; None: it calls no tools."""
    reasoning_format: str | None = None
    """How the model writes reasoning, one of REASONING_FORMATS; None: it does not reason."""
    sse_keep_alive_seconds: float = 15.0
    """A stream that is silent for so long gets a comment, as load balancers cut silent connections."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may call the API, as `parse_origin` returns them."""
    service: str | None = None
    """The replica's service, as `<namespace>/<name>`; needed with `gateway_keys`."""
    gateway_keys: tuple[str, ...] = ()
    """Public keys of the gateway. With them, clients need a token that one of them has signed."""
    max_requests: int = 1024
    """Sequences (choices of prompts) in flight, waiting ones included; more are answered 429."""
    max_queued_tokens: int = 1 << 20
    """Prompt tokens of sequences that have no first token yet; more are answered 429."""
    max_body_bytes: int = 8 << 20
    """A longer request body is answered 413."""
    inline_body_bytes: int = 128 << 10
    """The text worker parses longer bodies. A body of this length stops the event loop for up to 3 ms: token
    ids of one digit, or many short messages."""
    max_body_memory: int = 128 << 20
    """Bytes of all bodies that are being read, parsed or tokenised; more are answered 429."""
    max_event_bytes: int = 256 << 20
    """Bytes of streams that wait for their clients. Above this, requests are answered 429."""
    body_seconds: float = ConnectionLimits.body_seconds
    """A body that takes longer to arrive is answered 408."""

    @property
    def max_score_bytes(self) -> int:
        """The most bytes of one request's prompt log-probabilities: others need room. More is a 400."""
        return self.max_event_bytes // 2
