"""The token by which a replica knows that a request comes from a gateway.

Any pod of the cluster can call a replica's port. So where clients need keys, the gateway signs a token with
Ed25519 (RFC 8032), and the replica verifies it by the public keys in its flags. A token names one service and
ends after a minute: a replica that leaks its tokens reveals nothing that opens another service.

A token is `millrace1.<expiry>.<signature>`: seconds since 1970, and base64url without padding.
"""

import base64
import re
from collections import OrderedDict
from collections.abc import Iterable

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

VALID_SECONDS = 60
SKEW_SECONDS = 30
"""How far the clocks of gateway and replica may differ."""
KEY_BYTES = 32
_PREFIX = "millrace1"
_EXPIRY = re.compile(r"[1-9][0-9]{1,11}")
_SIGNATURE_LENGTH = 86
_NUM_REMEMBERED = 64


def generate_key() -> bytes:
    """Return the 32 bytes of a new private key."""
    return Ed25519PrivateKey.generate().private_bytes_raw()


def find_public_key(private_key: bytes) -> str:
    """Return the public key of a private one, as replicas' flags have it. Raises ValueError."""
    return _encode(Ed25519PrivateKey.from_private_bytes(private_key).public_key().public_bytes_raw())


def sign_token(private_key: bytes, service: str, now: float) -> str:
    """Return a token for the service `<namespace>/<name>` that ends a minute after `now`, in seconds."""
    expiry = int(now) + VALID_SECONDS
    signature = Ed25519PrivateKey.from_private_bytes(private_key).sign(_message(service, expiry))
    return f"{_PREFIX}.{expiry}.{_encode(signature)}"


class TokenVerifier:
    """Verifies the tokens of one service.

    It remembers the last valid tokens, because to verify a signature takes 119 microseconds (on a Xeon, with
    cryptography 50), and a gateway shows the same token for half a minute.
    """

    def __init__(self, service: str, public_keys: Iterable[str]) -> None:
        """Raises ValueError for a text that is no public key."""
        self._service = service
        self._keys = [Ed25519PublicKey.from_public_bytes(decode_key(key)) for key in public_keys]
        self._known: OrderedDict[str, int] = OrderedDict()
        """Expiries by token."""

    def is_valid(self, token: str, now: float) -> bool:
        """Whether one of the keys has signed the token for this service, and it has not ended."""
        expiry = self._known.get(token)
        if expiry is None:
            expiry = self._verify(token)
            if expiry is None:
                return False
            self._remember(token, expiry)
        return now - SKEW_SECONDS <= expiry <= now + VALID_SECONDS + SKEW_SECONDS

    def _verify(self, token: str) -> int | None:
        """Return the expiry of a token that one of the keys has signed, else None."""
        prefix, _, rest = token.partition(".")
        expiry, _, signature = rest.partition(".")
        if prefix != _PREFIX or not _EXPIRY.fullmatch(expiry) or len(signature) != _SIGNATURE_LENGTH:
            return None
        message = _message(self._service, int(expiry))
        return int(expiry) if any(_is_signed(key, signature, message) for key in self._keys) else None

    def _remember(self, token: str, expiry: int) -> None:
        self._known[token] = expiry
        if len(self._known) > _NUM_REMEMBERED:
            self._known.popitem(last=False)


def decode_key(text: str) -> bytes:
    """Return the bytes of a public key's text. Raises ValueError."""
    try:
        found = b"" if "=" in text else _decode(text)
    except ValueError:
        found = b""
    if len(found) != KEY_BYTES:
        raise ValueError(f"{text!r} is no public key: write 32 bytes in base64url, without padding")
    return found


def _message(service: str, expiry: int) -> bytes:
    return f"{_PREFIX} gateway {expiry} {service}".encode()


def _is_signed(key: Ed25519PublicKey, signature: str, message: bytes) -> bool:
    try:
        key.verify(_decode(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
