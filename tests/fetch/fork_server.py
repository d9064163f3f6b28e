"""A process that has the command's libraries, and at each request forks one that runs the command.

Such a process is stopped, killed and waited for as any other. It leaves out Python's start and the imports,
which take longer than a test's fetch.
"""

import gc
import importlib
import json
import os
import random
import selectors
import socket
import struct
import sys
import threading
import traceback
from typing import Any, NamedTuple

from millrace_cli.main import main as run_millrace

LIBRARIES = (
    *(
        "millrace_fetch.cli.command",
        "millrace_fetch.cli.local_model",
        "millrace_fetch.cli.remote_model",
        "millrace_fetch.cli.runner",
    ),
    *("millrace_fetch.cli.progress_output", "millrace_fetch.sources.hub", "millrace_fetch.sources.oci"),
    *("millrace_fetch.sources.s3", "millrace_fetch.sources.web"),
)
"""What the command would load."""
MAX_BYTES = 1 << 17
"""Of a request: the arguments, the environment and the folder."""
ID = struct.Struct("i")
"""Of the process; its status follows as text."""


class Child(NamedTuple):
    """A process that runs the command."""

    pid: int
    told: int
    """Where its end is told."""


def serve(requests: socket.socket) -> None:
    """Fork until nobody is there any more who asks for it."""
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.freeze()
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is not None:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    tell_end(key.data)
                elif (child := fork(requests)) is None:
                    return
                else:
                    selector.register(os.pidfd_open(child.pid), selectors.EVENT_READ, child)


def tell_end(child: Child) -> None:
    """Tell how it ended, as `subprocess` has it."""
    _, status = os.waitpid(child.pid, 0)
    os.write(child.told, str(os.waitstatus_to_exitcode(status)).encode())
    os.close(child.told)


def fork(requests: socket.socket) -> Child | None:
    """Run the command of the next request in a child. None: there will be no more of them."""
    text, descriptors, _, _ = socket.recv_fds(requests, MAX_BYTES, 3)
    if not text:
        return None
    out, err, told = descriptors
    pid = os.fork()
    if not pid:
        requests.close()
        os.dup2(out, 1)
        os.dup2(err, 2)
        os._exit(run(json.loads(text)))
    os.close(out)
    os.close(err)
    os.write(told, ID.pack(pid))
    return Child(pid, told)


def run(request: dict[str, Any]) -> int:
    """Become the command, and return its status once its threads have ended."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    importlib.reload(sys.modules["huggingface_hub.constants"])  # it has read the environment
    random.seed()
    sys.argv = request["arguments"]
    status = 1
    try:
        exec(request["before"], {})
        run_millrace()
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:  # noqa: BLE001  as Python tells it at its end
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing does
    sys.stdout.flush()
    return status


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
