"""What a refusal of the environment's proxy means. Pure.

A proxy's URL may hold a password, so nothing of it is told.
"""

from millrace_fetch.errors import FetchError, SourceError, UnavailableError, is_busy

UNREACHABLE = "the proxy of the environment can't be reached"
WANTS_PASSWORD = 407
"""The status by which a proxy, and never a source, asks who somebody is."""


def explain_proxy(place: str, status: int) -> FetchError:
    """Return what a proxy means that does not let us reach `place`. It passes by itself, or is final."""
    if status == WANTS_PASSWORD:
        return SourceError(
            f"{place}: the proxy of the environment wants a name and a password: write them into its URL in "
            "HTTPS_PROXY or HTTP_PROXY"
        )
    message = f"{place}: the proxy of the environment answered {status}"
    if is_busy(status):
        return UnavailableError(message)
    return SourceError(f"{message}: let its owner allow the host, or name it in NO_PROXY")
