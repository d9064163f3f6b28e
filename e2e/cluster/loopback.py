"""HTTP to this machine's own parts. It asks no proxy, whatever the environment names; nor need users."""

import http.client
import shlex
import ssl
import urllib.request
import warnings
from collections.abc import Mapping, Sequence


def fetch(url: str, context: ssl.SSLContext | None = None, timeout: float = 2.0) -> bytes:
    """Return the body of a GET's answer. Raises OSError for an error status, and where none comes in time."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    with urllib.request.build_opener(*handlers).open(url, timeout=timeout) as response:
        body: bytes = response.read()
    return body


def answers(url: str, context: ssl.SSLContext | None = None) -> bool:
    """Return whether a GET is answered with success.

    Python 3.11 drops a socket unclosed, and warns, where the server resets it before TLS begins.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            fetch(url, context)
        except (OSError, http.client.HTTPException):
            return False
    return True


def bypass_proxies(addresses: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """Return the shell's line that lets clients ask these addresses directly; None where they do.

    It names each address, as httpx and older curls know no ranges, in both spellings, as clients differ.
    """
    if not any(environ.get(name) for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")):
        return None
    lists = [_split(environ.get(name, "")) for name in ("NO_PROXY", "no_proxy")]
    if any("*" in kept for kept in lists) or all(set(addresses) <= set(kept) for kept in lists):
        return None
    value = shlex.quote(",".join(dict.fromkeys([*lists[0], *lists[1], *addresses])))
    return f"export NO_PROXY={value} no_proxy={value}"


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]
