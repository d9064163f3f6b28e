"""`python -m benchmarks.gateway.timed_pod`: the same, with a clock around each step of a request.

At SIGUSR1 it writes JSON to the file that TIMES names: the seconds spent in each step so far.
"""

import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.gateway.in_pod import main
from millrace_gateway.access.keys import KeyIndex
from millrace_gateway.access.limits.limiter import Limiter
from millrace_gateway.front import attempts, proxy, upstream
from millrace_gateway.front.guard import Guard
from millrace_gateway.front.headers import RequestHeaders
from millrace_gateway.front.load_poll import LoadPoll
from millrace_gateway.http import answer
from millrace_gateway.http.request_parser import RequestParser
from millrace_gateway.route import routing
from millrace_gateway.route.balance import Balancer
from millrace_gateway.route.preference import Preferences

TIMES: Final = "MILLRACE_BENCH_TIMES"
STEPS: Final[Mapping[str, tuple[tuple[Any, str], ...]]] = {
    "parse the head, start the task": ((RequestParser, "feed"),),
    "read the body's fields": ((routing, "read_fields"),),
    "find the key": ((KeyIndex, "find"),),
    "reserve in the limits": ((Limiter, "admit"),),
    "choose the request's headers": ((RequestHeaders, "choose"),),
    "choose the answer's headers": ((attempts, "response_headers"),),
    "write headers": tuple((module, "write_headers") for module in (proxy, upstream, answer)),
    "find a beginning's home": ((Preferences, "read"),),
    "pick a replica": ((Balancer, "pick"),),
    "write the token for the replica": ((Guard, "choose_headers"),),
    "read the replica's load": ((LoadPoll, "note_answer"),),
    "read the answer's usage": ((Guard, "read_answer"),),
    "settle the limits": ((Guard, "settle"),),
    "write the access log": ((Guard, "log"),),
}
"""Parts of the path that do not contain each other."""
_spent = dict.fromkeys(STEPS, 0.0)


def time_step(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a clock around it."""
    clock = time.perf_counter

    @functools.wraps(function)
    def timed(*values: Any, **named: Any) -> Any:
        began = clock()
        try:
            return function(*values, **named)
        finally:
            _spent[name] += clock() - began

    return timed


def _write(*_: object) -> None:
    path = Path(os.environ[TIMES])
    path.with_suffix(".new").write_text(json.dumps(_spent))
    path.with_suffix(".new").rename(path)


if __name__ == "__main__":
    for step, places in STEPS.items():
        for owner, attribute in places:
            setattr(owner, attribute, time_step(step, getattr(owner, attribute)))
    signal.signal(signal.SIGUSR1, _write)
    raise SystemExit(main(sys.argv[1:]))
