import base64

import pytest

from millrace_gateway.access.signer import RENEW_SECONDS, Signer
from millrace_gateway.route.objects import ServiceKey
from millrace_runtime.gateway_token import TokenVerifier, find_public_key, generate_key
from testing.limited_gateways import Clock

CHAT = ServiceKey("a", "chat")
OLD, NEW = generate_key(), generate_key()
OLD_PUBLIC, NEW_PUBLIC = find_public_key(OLD), find_public_key(NEW)


def make_secret(**keys: bytes) -> dict[str, object]:
    return {"data": {name: base64.b64encode(key).decode() for name, key in keys.items()}}


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.now = 1_700_000_000.0
    return clock


@pytest.fixture
def signer(clock: Clock, lines: list[str]) -> Signer:
    signer = Signer(clock, lines.append)
    signer.replace_keys(make_secret(k20260101T000000Z=OLD, k20260401T000000Z=NEW))
    return signer


@pytest.mark.parametrize(
    ("accepted", "public"),
    [([OLD_PUBLIC], OLD_PUBLIC), ([NEW_PUBLIC], NEW_PUBLIC), ([OLD_PUBLIC, NEW_PUBLIC], NEW_PUBLIC)],
    ids=["old", "new", "both"],
)
def test_the_newest_key_that_a_pod_accepts_signs(
    signer: Signer, clock: Clock, accepted: list[str], public: str
) -> None:
    token = signer.sign(CHAT, accepted)
    assert token
    assert TokenVerifier("a/chat", [public]).is_valid(token, clock())
    assert not TokenVerifier("a/code", [public]).is_valid(token, clock())


def test_no_token_without_a_key_that_matches(signer: Signer) -> None:
    assert signer.sign(CHAT, []) is None
    assert signer.sign(CHAT, [find_public_key(generate_key())]) is None
    signer.replace_keys(None)
    assert signer.sign(CHAT, [NEW_PUBLIC]) is None
    assert signer.sign_newest("x") is None


@pytest.mark.parametrize("jump", [0.2, -60.0, -86_400.0, 86_400.0])
def test_a_token_is_shown_for_half_a_minute_however_the_wall_clock_jumps(
    signer: Signer, clock: Clock, jump: float
) -> None:
    first = signer.sign(CHAT, [NEW_PUBLIC])
    clock.now += RENEW_SECONDS - 0.1
    assert signer.sign(CHAT, [NEW_PUBLIC]) == first
    clock.now += jump
    second = signer.sign(CHAT, [NEW_PUBLIC])
    assert second
    assert second != first
    assert TokenVerifier("a/chat", [NEW_PUBLIC]).is_valid(second, clock())


def test_tokens_that_nobody_uses_are_forgotten(signer: Signer, clock: Clock) -> None:
    for i in range(100):
        signer.sign(ServiceKey("a", f"s{i}"), [NEW_PUBLIC])
        clock.now += 1.0
    assert len(signer._tokens) + len(signer._former) <= 62


def test_what_is_no_key_is_named_and_leaves_the_others(signer: Signer, lines: list[str]) -> None:
    secret = make_secret(short=b"x" * 31, k1=NEW)
    signer.replace_keys({"data": {**secret["data"], "text": "?"}})  # type: ignore[dict-item]
    assert len(lines) == 2
    assert signer.sign(CHAT, [NEW_PUBLIC])
