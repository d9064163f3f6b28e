"""How long a request has waited at its gateway. Its latencies begin there: its client has waited since."""

from starlette.types import Scope

from millrace_runtime.contract import HEADER_WAITED

LONGEST_SECONDS = 86_400.0
"""No gateway lets a request wait for longer: what says more is no time."""
_WAITED = HEADER_WAITED.lower().encode()
_KEY = "millrace_waited"


def note_waited(scope: Scope) -> None:
    """Take over what the header says. To be called for a request with a gateway's token alone."""
    scope[_KEY] = next((_parse(value) for name, value in scope["headers"] if name == _WAITED), 0.0)


def read_waited(scope: Scope) -> float:
    """Return the seconds; 0 where no gateway has said it."""
    waited: float = scope.get(_KEY, 0.0)
    return waited


def _parse(value: bytes) -> float:
    try:
        seconds = float(value)
    except ValueError:
        return 0.0
    return seconds if 0.0 <= seconds <= LONGEST_SECONDS else 0.0
