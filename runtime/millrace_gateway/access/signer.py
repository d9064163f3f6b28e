"""The tokens by which replicas know this gateway, and the private keys that sign them.

The keys are in one Secret, an entry each, whose names sort by their time. A pod accepts the public keys in
its flags. The newest key that it accepts signs, so that a new key and old pods overlap.
"""

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from millrace_gateway.route.objects import Object, ServiceKey
from millrace_runtime.gateway_token import TokenVerifier, find_public_key, sign_token

RENEW_SECONDS = 30.0
"""Half of a token's life: one that is sent has at least half a minute left."""


class Signed(NamedTuple):
    """A token, and when it was signed, by the wall clock."""

    token: str
    at: float


class Signer:
    """Owner of the private keys and of the tokens. `clock` returns the wall clock's seconds since 1970."""

    def __init__(self, clock: Callable[[], float], report: Callable[[str], None]) -> None:
        """`report` gets a line about each entry that is no key."""
        self._clock = clock
        self._report = report
        self._keys: dict[str, bytes] = {}
        """Private keys by public ones, the newest first."""
        self._tokens: dict[tuple[str, str], Signed] = {}
        self._former: dict[tuple[str, str], Signed] = {}
        """Tokens of the half minute before, so that those which nobody uses are forgotten."""
        self._turned_at = 0.0

    def replace_keys(self, secret: Object | None) -> None:
        """Replace the private keys with those of this Secret; None: it is gone."""
        data: Mapping[str, str] = (secret or {}).get("data") or {}
        keys = {}
        for name in sorted(data, reverse=True):
            try:
                private = base64.b64decode(data[name], validate=True)
                keys[find_public_key(private)] = private
            except (ValueError, TypeError):
                self._report(
                    f"the entry {name!r} of the gateway's signing keys is no Ed25519 key of 32 bytes"
                )
        self._keys = keys
        self._tokens = {at: signed for at, signed in self._tokens.items() if at[1] in keys}
        self._former = {}

    def sign(self, service: ServiceKey, public_keys: Iterable[str]) -> str | None:
        """Return a token for a service's pod that accepts these public keys; None if no key matches."""
        accepted = frozenset(public_keys)
        public = next((key for key in self._keys if key in accepted), None)
        return self._find_token(str(service), public) if public else None

    def sign_newest(self, audience: str) -> str | None:
        """Return a token for another gateway; None without a key."""
        public = next(iter(self._keys), None)
        return self._find_token(audience, public) if public else None

    def make_verifier(self, audience: str) -> TokenVerifier:
        """Return a verifier of the tokens of other gateways, which have the same keys."""
        return TokenVerifier(audience, self._keys)

    def _find_token(self, audience: str, public: str) -> str:
        now, at = self._clock(), (audience, public)
        self._forget_unused(now)
        signed = self._tokens.get(at) or self._former.get(at)
        if signed is None or not 0.0 <= now - signed.at < RENEW_SECONDS:  # also if the clock was set back
            signed = Signed(sign_token(self._keys[public], audience, now), now)
        self._tokens[at] = signed
        return signed.token

    def _forget_unused(self, now: float) -> None:
        if not 0.0 <= now - self._turned_at < RENEW_SECONDS:
            self._former, self._tokens, self._turned_at = self._tokens, {}, now
