"""Limits on a connection's times and bytes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ConnectionLimits:
    """Times in seconds, sizes in bytes."""

    head_seconds: float = 30.0
    """From a request's first byte to the end of its head."""
    idle_seconds: float = 75.0
    """Between two requests of a connection: longer than the 60 s of usual load balancers."""
    stall_seconds: float = 60.0
    """The gateway disconnects a client that acknowledges none of its bytes for so long. That includes a
    client that reads a byte a second, because its kernel reports no room for more; not one that empties a
    part of its buffer."""
    linger_seconds: float = 1.0
    """How long the gateway reads on after it refused a body, so that its client gets the answer."""
    max_head_bytes: int = 64 * 1024
    """Of a request line and its headers; also of trailers, or of anything else that is no body."""
    max_target_bytes: int = 8 * 1024
    """Of the path with its query, as of nginx: decoding them holds the loop, and no API needs more."""
    max_headers: int = 128
    max_pipelined_bytes: int = 64 * 1024
    """Of requests behind the one that is being answered."""
    max_kept_bytes: int = 64 * 1024 * 1024
    """Of all connections together: heads that have arrived in part, and what follows a request that is being
    answered. Usual clients have neither, as a head comes in one read. So a client that fills this stops no
    other."""
