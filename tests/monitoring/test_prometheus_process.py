"""What a test is given is a Prometheus that answers, not one that only listens."""

import sys
from pathlib import Path

import aiohttp
import pytest

from tests.monitoring.prometheus_process import run_prometheus

SLOW_TO_READ_ITS_DATA = """\
#!{python}
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

asked = 0


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        global asked
        asked += 1
        self.send_response(503 if asked <= 3 else 200)
        self.end_headers()

    def log_message(self, *words):
        pass


address = next(word for word in sys.argv if word.startswith("--web.listen-address="))
HTTPServer(("127.0.0.1", int(address.rsplit(":", 1)[1])), Handler).serve_forever()
"""


def write_program(folder: Path, text: str) -> Path:
    program = folder / "prometheus"
    program.write_text(text.format(python=sys.executable))
    program.chmod(0o755)
    return program


async def test_it_is_yielded_once_it_answers(tmp_path: Path) -> None:
    program = write_program(tmp_path, SLOW_TO_READ_ITS_DATA)
    async with run_prometheus(program, tmp_path, {}) as url, aiohttp.ClientSession() as http:
        assert (await http.get(f"{url}/api/v1/parse_query")).status == 200


async def test_one_that_ends_at_once_says_why(tmp_path: Path) -> None:
    program = write_program(tmp_path, "#!/bin/sh\necho no such file >&2\nexit 2\n")
    with pytest.raises(AssertionError, match="ended with 2: no such file"):
        async with run_prometheus(program, tmp_path, {}):
            pass
