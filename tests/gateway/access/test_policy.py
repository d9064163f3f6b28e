from typing import Any

import pytest

from millrace_gateway.access.errors import PolicyError, UnknownKeyError
from millrace_gateway.access.identity import read_credentials
from millrace_gateway.access.policy import (
    OPEN,
    AccessPolicy,
    RateLimit,
    Scope,
    SecretRef,
    find_tightest,
    read_default,
    read_policy,
)

PLATFORM = AccessPolicy(
    needs_key=True, secret=SecretRef("system", "platform"), rate_limits=(RateLimit(Scope.KEY, 60),)
)
OWN = SecretRef("a", "own")


@pytest.mark.parametrize(
    ("access", "needs_key", "secret"),
    [
        (None, True, PLATFORM.secret),
        ({}, True, PLATFORM.secret),
        ({"authentication": {}}, True, PLATFORM.secret),
        ({"authentication": {"mode": "None"}}, False, None),
        ({"authentication": {"mode": "None", "secretName": "own"}}, False, None),
        ({"authentication": {"mode": "APIKey"}}, True, PLATFORM.secret),
        ({"authentication": {"mode": "APIKey", "secretName": "own"}}, True, OWN),
        ({"authentication": {"secretName": "own"}}, True, OWN),
        # What this version does not know closes the service.
        ({"authentication": {"mode": "JWT", "secretName": "own"}}, True, None),
        ({"authentication": {"mode": 1}}, True, None),
        ({"authentication": {"mode": "APIKey", "secretName": ["own"]}}, True, None),
        ({"authentication": "APIKey"}, True, None),
        ("APIKey", True, None),
    ],
)
def test_who_may_use_a_service(access: object, needs_key: bool, secret: SecretRef | None) -> None:  # noqa: FBT001
    policy = read_policy(access, PLATFORM, "a")
    assert (policy.needs_key, policy.secret) == (needs_key, secret)
    assert policy.rate_limits == PLATFORM.rate_limits


def test_an_open_platform_with_one_closed_service() -> None:
    assert read_policy(None, OPEN, "a") is OPEN
    assert read_policy({"authentication": {"mode": "APIKey"}}, OPEN, "a") == AccessPolicy(needs_key=True)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ([], ()),
        ([{"per": "Key", "requestsPerMinute": 5}], (RateLimit(Scope.KEY, 5),)),
        ([{"per": "Key", "requestsPerMinute": 10**400}], (RateLimit(Scope.KEY, 2**53),)),
        (
            [{"per": "Service", "tokensPerMinute": 5, "concurrency": 1}],
            (RateLimit(Scope.SERVICE, None, 5, 1),),
        ),
        (
            [{"per": "Planet", "requestsPerMinute": 5}, {"per": "Key", "concurrency": 2}],
            (RateLimit(Scope.KEY, None, None, 2),),
        ),
        (
            [
                {"per": "Key", "requestsPerMinute": 0},
                {"per": "Key", "requestsPerMinute": True},
                {"per": ["Key"]},
                5,
            ],
            (),
        ),
        ("many", ()),
        (5, ()),
    ],
)
def test_limits_that_are_understood(limits: object, expected: tuple[RateLimit, ...]) -> None:
    assert read_policy({"rateLimits": limits}, PLATFORM, "a").rate_limits == expected


def test_several_limits_of_a_scope_are_the_tightest_of_each_figure() -> None:
    limits = (RateLimit(Scope.KEY, 5, 100), RateLimit(Scope.KEY, 9, 10, 3), RateLimit(Scope.SERVICE, 1))
    assert find_tightest(limits, Scope.KEY) == RateLimit(Scope.KEY, 5, 10, 3)
    assert find_tightest(limits[:1], Scope.SERVICE) is None


def test_the_default_is_json_in_the_shape_of_the_field() -> None:
    text = '{"authentication": {"mode": "APIKey", "secretName": "platform"}}'
    assert read_default(text, "system").secret == PLATFORM.secret
    assert read_default("", "system") == OPEN


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '"x"', '{"authentication": {"mode": "APIKey"}}', '{"authentication": {"mode": "JWT"}}'],
)
def test_a_default_that_would_close_all_services_is_refused(text: str) -> None:
    with pytest.raises(PolicyError, match=r"gateway\.access|secretName"):
        read_default(text, "system")


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({}, None),
        ({"authorization": "Bearer k"}, "k"),
        ({"authorization": "bearer  k "}, "k"),
        ({"authorization": "Basic k"}, None),
        ({"authorization": "Bearer"}, None),
        ({"authorization": "Bearer ", "api-key": " "}, None),
        ({"api-key": "k"}, "k"),
        ({"x-api-key": "k", "authorization": "Bearer k"}, "k"),
        ({"x-api-key": "k", "authorization": "Basic other"}, "k"),
    ],
)
def test_a_key_is_read_wherever_clients_send_it(headers: dict[str, str], key: str | None) -> None:
    assert read_credentials(headers) == key


@pytest.mark.parametrize("other", ["api-key", "x-api-key"])
def test_two_different_keys_are_refused(other: str) -> None:
    headers: dict[str, Any] = {"authorization": "Bearer k", other: "l"}
    with pytest.raises(UnknownKeyError, match="Send one"):
        read_credentials(headers)
