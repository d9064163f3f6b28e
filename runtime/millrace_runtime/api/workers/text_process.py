"""The text worker's process with the readers of bodies: it parses the large ones beside the event loop.

python -m millrace_runtime.api.workers.text_process, with the arguments of chat/text_process.py
"""

import os
import sys

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.generation_request import encode_request
from millrace_runtime.api.request.readers import READERS
from millrace_runtime.chat.errors import BodyRefusedError
from millrace_runtime.chat.jobs import TextJob
from millrace_runtime.chat.text_process import main


def read_body(dialect: str, body: bytes) -> tuple[TextJob | list[list[int]], bytes]:
    """Return a body's prompts, and its request as `decode_request` reads it. Raises BodyRefusedError."""
    try:
        request, prompts = READERS[dialect](body)
    except BadRequestError as error:
        raise BodyRefusedError(error.message, error.param, error.code) from error
    return prompts, encode_request(request)


if __name__ == "__main__":
    # Skip the interpreter's teardown: nothing here needs it, and a drain should not wait for it.
    os._exit(main(sys.argv[1:], read_body))
