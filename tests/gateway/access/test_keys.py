import base64
import hashlib
import json
import time
from typing import Any

import pytest

from millrace_gateway.access.errors import (
    KeysUnavailableError,
    MissingKeyError,
    ModelNotAllowedError,
    UnknownKeyError,
)
from millrace_gateway.access.identity import Client, Tenant
from millrace_gateway.access.keys import MOST_ENTRIES, MOST_LINES, KeyIndex
from millrace_gateway.access.policy import RateLimit, Scope, SecretRef
from millrace_gateway.errors import RequestRefusedError, list_codes
from millrace_gateway.route.objects import ServiceKey

SECRET = SecretRef("a", "keys")
CHAT = ServiceKey("a", "chat")


def make_secret(namespace: str = "a", name: str = "keys", **entries: Any) -> dict[str, Any]:
    """Entries are values, as text or as what is written as JSON."""
    texts = {n: e if isinstance(e, str) else json.dumps(e) for n, e in entries.items()}
    data = {n: base64.b64encode(text.encode()).decode() for n, text in texts.items()}
    return {"metadata": {"namespace": namespace, "name": name}, "data": data}


def entry(*keys: str, **fields: Any) -> dict[str, Any]:
    return {"sha256": [hashlib.sha256(key.encode()).hexdigest() for key in keys], **fields}


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def index(lines: list[str]) -> KeyIndex:
    return KeyIndex(lines.append)


def test_a_client_is_its_entry_whichever_of_its_keys_it_shows(index: KeyIndex) -> None:
    index.apply(make_secret(ada=entry("old", "new"), bob=entry("bob")))
    assert (
        index.find(SECRET, "old", CHAT)
        == index.find(SECRET, "new", CHAT)
        == Client(Tenant("a", "keys", "ada"))
    )
    assert index.find(SECRET, "bob", CHAT).tenant.entry == "bob"
    index.apply(make_secret(ada=entry("new")))
    for gone in ("old", "bob"):
        with pytest.raises(UnknownKeyError):
            index.find(SECRET, gone, CHAT)
    index.delete(make_secret())
    with pytest.raises(KeysUnavailableError):
        index.find(SECRET, "new", CHAT)


@pytest.mark.parametrize(
    ("secret", "credentials", "refusal"),
    [
        (None, "k", KeysUnavailableError),
        (SecretRef("a", "other"), "k", KeysUnavailableError),
        (SECRET, None, MissingKeyError),
        (SECRET, "", MissingKeyError),
        (SECRET, "K", UnknownKeyError),
        (SECRET, "\udcff", UnknownKeyError),
        (SECRET, hashlib.sha256(b"k").hexdigest(), UnknownKeyError),
        (SECRET, "limited", ModelNotAllowedError),
    ],
)
def test_who_is_refused(
    index: KeyIndex, secret: SecretRef | None, credentials: str | None, refusal: type[RequestRefusedError]
) -> None:
    index.apply(make_secret(ada=entry("k"), bob=entry("limited", models=["other"])))
    with pytest.raises(refusal) as caught:
        index.find(secret, credentials, CHAT)
    assert caught.value.code in list_codes()
    assert ("WWW-Authenticate" in caught.value.headers) == (refusal.status == 401)
    assert credentials is None or len(credentials) < 2 or credentials not in caught.value.message


@pytest.mark.parametrize(
    ("models", "allowed"),
    [
        (None, {"a/chat", "a/code", "b/chat"}),
        ([], set()),
        (["chat"], {"a/chat"}),
        (["*"], {"a/chat", "a/code"}),
        (["b/*", "a/code"], {"a/code", "b/chat"}),
        (["*/chat"], set()),
    ],
)
def test_which_services_a_client_may_use(
    index: KeyIndex, models: list[str] | None, allowed: set[str]
) -> None:
    index.apply(make_secret(ada=entry("k", models=models)))
    client = index.find_all("k")[0]
    services = [ServiceKey("a", "chat"), ServiceKey("a", "code"), ServiceKey("b", "chat")]
    assert {str(service) for service in services if client.may_use(service)} == allowed


def test_a_clients_own_limits_are_per_key(index: KeyIndex) -> None:
    limits = [{"requestsPerMinute": 5}, {"per": "Key", "concurrency": 2}]
    index.apply(make_secret(ada=entry("k", rateLimits=limits), bob=entry("l", rateLimits=[])))
    found = index.find(SECRET, "k", CHAT).rate_limits
    assert found == (RateLimit(Scope.KEY, 5), RateLimit(Scope.KEY, concurrency=2))
    assert index.find(SECRET, "l", CHAT).rate_limits == ()


BAD = [
    "no JSON",
    "[" * 100_000,
    "\x00",
    "null",
    "[]",
    '"mr-secret"',
    {},
    {"sha256": "mr-secret"},
    {"sha256": ["mr-secret"]},
    {"sha256": [5]},
    entry("k", models="chat"),
    entry("k", models=[""]),
    entry("k", rateLimits=[{"requestsPerMinute": "mr-secret"}]),
    entry("k", rateLimits=5),
]


@pytest.mark.parametrize("bad", BAD)
def test_an_entry_that_cant_be_read_is_named_once_and_closes_no_other(
    index: KeyIndex, lines: list[str], bad: object
) -> None:
    index.apply(make_secret(bad=bad, good=entry("good")))
    index.apply(make_secret(bad=bad, good=entry("good"), third=entry("third")))
    assert index.find(SECRET, "good", CHAT)
    with pytest.raises(UnknownKeyError):
        index.find(SECRET, "k", CHAT)
    (line,) = lines
    assert "'bad'" in line
    assert "a/keys" in line
    assert "mr-secret" not in line


def test_a_value_that_is_no_base64_is_one_that_cant_be_read(index: KeyIndex, lines: list[str]) -> None:
    index.apply({"metadata": {"namespace": "a", "name": "keys"}, "data": {"bad": "?"}})
    assert len(lines) == 1


def test_a_secret_of_a_hundred_thousand_entries_costs_a_few_lines(index: KeyIndex, lines: list[str]) -> None:
    data = {f"e{i:06}": "" for i in range(100_000)}
    index.apply({"metadata": {"namespace": "a", "name": "keys"}, "data": data})
    assert len(lines) == MOST_LINES + 1
    assert len(index._secrets[SECRET].entries) == MOST_ENTRIES


def test_a_key_of_two_entries_is_the_firsts(index: KeyIndex, lines: list[str]) -> None:
    index.apply(make_secret(bob=entry("k"), ada=entry("k", "k")))
    assert index.find(SECRET, "k", CHAT).tenant.entry == "ada"
    assert len(lines) == 1


def test_nobody_opens_anothers_service_with_a_copied_hash(index: KeyIndex) -> None:
    index.apply(make_secret(ada=entry("k")))
    index.apply(make_secret("b", mallory=entry("k")))
    assert index.find(SECRET, "k", CHAT).tenant == Tenant("a", "keys", "ada")
    index.replace_secrets([], "a")
    with pytest.raises(KeysUnavailableError):
        index.find(SECRET, "k", CHAT)
    assert [client.tenant.namespace for client in index.find_all("k")] == ["b"]


def test_salts_differ_even_where_names_join_to_the_same_text() -> None:
    tenants = [Tenant("a", "b", "cd"), Tenant("a", "bc", "d"), Tenant("ab", "c", "d"), Tenant("", "ab", "cd")]
    assert len({Client(tenant).salt for tenant in tenants}) == len(tenants)
    assert len(Client(tenants[0]).salt) == 64


def test_ten_thousand_clients_are_found_as_fast_as_ten(index: KeyIndex) -> None:
    index.apply(make_secret(**{f"c{i}": entry(f"k{i}") for i in range(10_000)}))
    begin = time.process_time()
    for i in range(10_000):
        assert index.find(SECRET, f"k{i}", CHAT).tenant.entry == f"c{i}"
    assert time.process_time() - begin < 0.2  # 20 microseconds each; it takes 2
