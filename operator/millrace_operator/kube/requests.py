"""The body of a request to the API server, and how many writes it gets a second. Pure.

The API server reads an apply as YAML. Its reader refuses some characters that JSON allows, and folds others.
One such character in the last line of a pod's log, which status quotes, would hold back every write.
"""

import math
import re

import orjson

from millrace_operator.kube.kinds import Obj

UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""DEL, the C1 controls, line and paragraph separators, the byte order mark, and noncharacters."""


def encode_body(body: Obj) -> bytes:
    """Return `body` as JSON that a YAML reader understands as the same. Only strings have such characters."""
    content = orjson.dumps(body)
    if content.isascii() and b"\x7f" not in content:
        return content
    return UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", content.decode()).encode()


class TokenBucket:
    """Grants writes at `rate` a second, with bursts of `burst`. Time is an argument."""

    def __init__(self, rate: float, burst: int, now: float) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError(f"a rate above 0 and a burst of at least 1 are needed, got {rate} and {burst}")
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._updated = now
        self._paused_until = -math.inf

    def pause(self, until: float) -> None:
        """Grant nothing until that time, because the API server asks for it."""
        self._paused_until = max(self._paused_until, until)

    def pause_left(self, now: float) -> float:
        """Return how many seconds of a pause are left; 0 without one."""
        return max(0.0, self._paused_until - now)

    def reserve(self, now: float) -> float:
        """Take one token, and return the seconds to wait before its use."""
        elapsed = max(0.0, now - self._updated)
        self._tokens = min(float(self._burst), self._tokens + elapsed * self._rate) - 1
        self._updated = max(now, self._updated)
        return max(-self._tokens / self._rate, self.pause_left(now))
