"""How soon the engine learns that a client has left: raw sockets against the real server."""

import json
import socket
import struct
import time
from typing import Any

import pytest

from tests.runtime.api.served import Served

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset
WITHIN_SECONDS = 0.1


def open_request(served: Served, body: dict[str, Any]) -> socket.socket:
    client = socket.create_connection((served.client.base_url.host, served.client.base_url.port))
    content = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(content)
    client.sendall(head + content)
    return client


@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize("is_streaming", [False, True])
@pytest.mark.parametrize("num_steps", [0, 3])
async def test_the_engine_drops_a_sequence_within_a_tenth_of_a_second(
    served: Served, *, num_steps: int, is_streaming: bool, is_reset: bool
) -> None:
    served.engine.pauses_after = num_steps
    client = open_request(served, {"prompt": "a", "stream": is_streaming})
    await served.until(lambda: served.engine.running and served.engine.num_steps == num_steps)
    if is_reset:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    began = time.monotonic()
    client.close()
    await served.until(lambda: served.engine.aborted)
    assert time.monotonic() - began < WITHIN_SECONDS
