"""When a source is asked again whose branch is followed. Pure: operator and plugin reckon alike."""

import hashlib

EVERY = "1h"
"""Unless spec.model.followEvery says something else."""
_SPREAD = 0.1
"""Of that time: services that were made together would ask their source at the same moment."""


def find_next_ask(asked_at: float, every_seconds: float, uid: str) -> float:
    """Return when the source is asked again, in seconds since 1970. `uid` is the service's."""
    share = int(hashlib.sha256(uid.encode()).hexdigest()[:8], 16) / 2**32
    return asked_at + every_seconds * (1 + _SPREAD * share)
