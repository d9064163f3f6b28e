"""The bytes of a request's body. Pure.

The API server reads an apply as YAML. Its reader refuses some characters that JSON allows, and folds others:
one such character in the last line of a pod's log, which status quotes, would hold back every write.
"""

import re

import orjson

from millrace_operator.kube.kinds import Obj

UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""DEL, the C1 controls, line and paragraph separators, the byte order mark, and what is no character."""


def encode_body(body: Obj) -> bytes:
    """Return `body` as JSON that a YAML reader understands as the same. Such bytes only stand in strings."""
    content = orjson.dumps(body)
    if content.isascii() and b"\x7f" not in content:
        return content
    return UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", content.decode()).encode()
