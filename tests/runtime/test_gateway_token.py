import base64

import pytest

from millrace_runtime.gateway_token import (
    TokenVerifier,
    decode_key,
    find_public_key,
    generate_key,
    sign_token,
)

NOW = 1_800_000_000.0
KEY, OTHER = generate_key(), generate_key()


@pytest.fixture
def verifier() -> TokenVerifier:
    return TokenVerifier("team-a/chat", [find_public_key(KEY)])


def test_a_token_is_valid_for_a_minute_and_the_skew_of_clocks(verifier: TokenVerifier) -> None:
    token = sign_token(KEY, "team-a/chat", NOW)
    assert [verifier.is_valid(token, NOW + late) for late in (-31, -30, 0, 60, 90, 91)] == [
        False, True, True, True, True, False,
    ]  # fmt: skip


def test_no_other_key_service_or_text_passes(verifier: TokenVerifier) -> None:
    good = sign_token(KEY, "team-a/chat", NOW)
    prefix, expiry, signature = good.split(".")
    bad = [
        "",
        "millrace1",
        sign_token(OTHER, "team-a/chat", NOW),
        sign_token(KEY, "team-a/chat2", NOW),
        sign_token(KEY, "team-b/chat", NOW),
        f"{prefix}.{int(expiry) + 1}.{signature}",
        f"{prefix}.0{expiry}.{signature}",
        f"{prefix}.+{expiry}.{signature}",
        f"{prefix}.{expiry}.{signature}=",
        f"{prefix}.{expiry}.{signature[:-1]}é",
        f"{prefix}.{'9' * 400}.{signature}",
        f" {good}",
        f"{good}.",
    ]
    assert [token for token in bad if verifier.is_valid(token, NOW)] == []


def test_two_keys_overlap_while_one_replaces_the_other() -> None:
    both = TokenVerifier("a/b", map(find_public_key, (KEY, OTHER)))
    assert all(both.is_valid(sign_token(key, "a/b", NOW), NOW) for key in (KEY, OTHER))


def test_many_tokens_are_not_remembered_for_ever(verifier: TokenVerifier) -> None:
    for second in range(100):
        assert verifier.is_valid(sign_token(KEY, "team-a/chat", NOW + second), NOW + second)
    assert len(vars(verifier)["_known"]) == 64


@pytest.mark.parametrize("text", ["", "key", base64.b64encode(b"x" * 32).decode(), "é" * 43])
def test_a_text_that_is_no_key_is_refused_with_the_right_form(text: str) -> None:
    with pytest.raises(ValueError, match="write 32 bytes in base64url"):
        decode_key(text)
