"""HTTP to this machine's own parts. It asks no proxy, whatever the environment names."""

import http.client
import ssl
import urllib.request


def fetch(url: str, context: ssl.SSLContext | None = None, timeout: float = 2.0) -> bytes:
    """Return the body of a GET's answer. Raises OSError for an error status, and where none comes in time."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    with urllib.request.build_opener(*handlers).open(url, timeout=timeout) as response:
        body: bytes = response.read()
    return body


def answers(url: str, context: ssl.SSLContext | None = None) -> bool:
    """Return whether a GET is answered with success."""
    try:
        fetch(url, context)
    except (OSError, http.client.HTTPException):
        return False
    return True
