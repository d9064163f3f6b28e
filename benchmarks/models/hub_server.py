"""`python -m benchmarks.models.hub_server FOLDER`: a Hub with one repository, which sends by sendfile.

A process of its own, so that its work is not the measured one's. It reads each file's hash from FOLDER.json,
and prints its address. The Hub of the tests is slower than the limit.
"""

import argparse
import json
import math
import os
import sys
import time
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import BinaryIO, NamedTuple

from benchmarks.models.limit import Limit
from benchmarks.models.shards import StoredModel
from millrace_runtime.process import end_with_parent

REPOSITORY = "org/m"
COMMIT = "1" * 40
SLICE_BYTES = 1 << 20
_API = f"/api/models/{REPOSITORY}"
_FILES = f"/{REPOSITORY}/resolve/{COMMIT}/"


class Slices:
    """Sends files, all connections together no faster than the limit."""

    def __init__(self, bytes_per_second: float) -> None:
        self._limit = Limit(bytes_per_second)
        self._lock = Lock()

    def send(self, socket: int, file: BinaryIO, start: int, end: int) -> None:
        """Send a range of a file."""
        while start < end:
            size = min(SLICE_BYTES, end - start)
            with self._lock:
                seconds = self._limit.book(size, time.monotonic())
            time.sleep(seconds)
            stop = start + size
            while start < stop:
                start += os.sendfile(socket, file.fileno(), start, stop - start)


class Asked(NamedTuple):
    """A part of a file."""

    start: int
    end: int
    is_range: bool


def read_range(header: str | None, size: int) -> Asked:
    """Return what a Range header asks for: `bytes=FIRST-LAST`, as our fetch writes it, or everything."""
    if header is None:
        return Asked(0, size, is_range=False)
    first, _, last = header.removeprefix("bytes=").partition("-")
    return Asked(int(first), min(size, int(last) + 1), is_range=True)


class HubHandler(BaseHTTPRequestHandler):
    """Answers what `millrace fetch` and curl ask for."""

    protocol_version = "HTTP/1.1"

    def __init__(self, model: StoredModel, slices: Slices, *arguments: object) -> None:
        self._model = model
        self._slices = slices
        super().__init__(*arguments)  # type: ignore[arg-type]  # what the server hands over

    def do_GET(self) -> None:
        """Describe the repository, or send a file."""
        path = self.path.partition("?")[0]
        name = path.removeprefix(_FILES)
        if path == _API:
            self._describe()
        elif name in self._model.sha256:
            self._send_file(self._model.folder / name)
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _describe(self) -> None:
        siblings = [self._describe_file(name, digest) for name, digest in self._model.sha256.items()]
        body = json.dumps({"id": REPOSITORY, "sha": COMMIT, "siblings": siblings}).encode()
        self._begin(HTTPStatus.OK, len(body))
        self.wfile.write(body)

    def _describe_file(self, name: str, digest: str) -> dict[str, object]:
        size = (self._model.folder / name).stat().st_size
        return {"rfilename": name, "size": size, "lfs": {"size": size, "sha256": digest}}

    def _send_file(self, path: Path) -> None:
        size = path.stat().st_size
        asked = read_range(self.headers.get("Range"), size)
        status = HTTPStatus.PARTIAL_CONTENT if asked.is_range else HTTPStatus.OK
        more = {"Content-Range": f"bytes {asked.start}-{asked.end - 1}/{size}"} if asked.is_range else {}
        self._begin(status, asked.end - asked.start, more)
        with path.open("rb") as file:
            self._slices.send(self.connection.fileno(), file, asked.start, asked.end)

    def _begin(self, status: HTTPStatus, length: int, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for header, value in {"Content-Length": str(length), **(more or {})}.items():
            self.send_header(header, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing: the output is the address."""


def main(argv: list[str]) -> int:
    """Serve until the process that started it ends."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models.hub_server", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bytes-per-second", type=float, default=math.inf, help="in all (no limit)")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="ends with this process")
    arguments = parser.parse_args(argv)
    end_with_parent(arguments.parent)
    hashes = json.loads(arguments.folder.with_suffix(".json").read_text())
    handler = partial(HubHandler, StoredModel(arguments.folder, hashes), Slices(arguments.bytes_per_second))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
