"""Says in words why a server was not reached. Pure."""

import os

import aiohttp


def describe_failure(error: Exception) -> str:
    """Return why a server was not reached. aiohttp's own text shows its TLS context as a Python object."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"cannot trust {error.host}:{error.port}: {error.certificate_error}"
    if not isinstance(error, aiohttp.ClientConnectorError):
        return str(error) or type(error).__name__
    cause = error.os_error
    # asyncio's text of a refused connection has the address, and not that it was refused.
    if isinstance(cause, ConnectionError) and cause.errno is not None:
        why = os.strerror(cause.errno)
    else:
        why = cause.strerror or str(cause)
    return f"cannot connect to {error.host}:{error.port}: {why}"
