"""`kubectl millrace key`: a key's life, from its creation by way of a rotation to its end."""

import base64
import hashlib
import json
import re
from typing import Any

import pytest

from millrace_runtime.contract import LABEL_API_KEYS
from tests.kubectl.terminal import Terminal

KEY = re.compile(r"mr-[A-Za-z0-9_-]{43}\n")


def read(terminal: Terminal, client: str = "ann", secret: str = "clients") -> Any:
    value = terminal.secrets[secret]["data"].get(client)
    return None if value is None else json.loads(base64.b64decode(value))


def hash_of(printed: str) -> str:
    return hashlib.sha256(printed.strip().encode()).hexdigest()


def put_entry(terminal: Terminal, text: str) -> None:
    entry = base64.b64encode(text.encode()).decode()
    terminal.put_secret("clients", {"ann": entry}, {LABEL_API_KEYS: "true"})


def test_a_key_is_printed_once_replaced_and_revoked(terminal: Terminal) -> None:
    first = terminal.run("key", "create", "clients", "ann")
    assert (first.status, bool(KEY.fullmatch(first.out))) == (0, True)
    assert terminal.secrets["clients"]["metadata"]["labels"] == {LABEL_API_KEYS: "true"}
    assert read(terminal) == {"sha256": [hash_of(first.out)]}
    second = terminal.run("key", "create", "clients", "ann")
    assert "a second key of client ann" in second.error
    assert read(terminal) == {"sha256": [hash_of(first.out), hash_of(second.out)]}
    third = terminal.run("key", "create", "clients", "ann")
    assert (third.status, third.out) == (1, "")
    assert "kubectl millrace key revoke clients ann --old" in third.error
    for _ in range(2):
        assert terminal.run("key", "revoke", "clients", "ann", "--old").status == 0
        assert read(terminal) == {"sha256": [hash_of(second.out)]}
    assert "is revoked" in terminal.run("key", "revoke", "clients", "ann").out
    assert read(terminal) is None
    gone = terminal.run("key", "revoke", "clients", "ann")
    assert (gone.status, "has no client ann" in gone.error) == (1, True)
    calls = json.dumps(terminal.calls)
    assert not [one for one in (first, second) if one.out.strip() in calls], (
        "kubectl gets no key, only hashes"
    )


def test_models_and_limits_stay_with_a_client_until_others_are_written(terminal: Terminal) -> None:
    words = ("key", "create", "clients", "ann")
    terminal.run(*words, "--models", "chat,code", "--tokens-per-minute", "90000", "--concurrency", "4")
    expected = {"models": ["chat", "code"], "rateLimits": [{"tokensPerMinute": 90000, "concurrency": 4}]}
    assert read(terminal).items() >= expected.items()
    terminal.run(*words, "--models", "team-a/*")
    assert read(terminal).items() >= {**expected, "models": ["team-a/*"]}.items()


def test_the_list_has_all_but_the_hashes(terminal: Terminal) -> None:
    assert "kubectl millrace key create makes one" in terminal.run("key", "list").out
    terminal.run("key", "create", "clients", "ann")
    terminal.run("key", "create", "clients", "ann", "--models", "chat", "--requests-per-minute", "60")
    terminal.run("key", "create", "others", "bob")
    terminal.put_secret("tls", {"tls.key": "QQ=="}, {})
    table = terminal.run("key", "list").out
    assert [re.split(r" {2,}", line) for line in table.splitlines()] == [
        ["SECRET", "CLIENT", "KEYS", "MODELS", "LIMITS"],
        ["clients", "ann", "2", "chat", "60 requests/min"],
        ["others", "bob", "1", "all", "the service's"],
    ]
    assert read(terminal)["sha256"][0] not in table
    assert "ann" not in terminal.run("key", "list", "others").out


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[]",
        "{}",
        '{"sha256": "abc"}',
        '{"sha256": ["abc"]}',
        '{"sha256": [], "rateLimits": [{"concurrency": []}]}',
    ],
)
def test_an_entry_that_gateways_skip_can_be_listed_and_revoked_alone(terminal: Terminal, text: str) -> None:
    put_entry(terminal, text)
    assert "unreadable: revoke it" in terminal.run("key", "list").out
    assert "revoke it, and create a key" in terminal.run("key", "create", "clients", "ann").error
    assert terminal.run("key", "revoke", "clients", "ann").status == 0
    assert read(terminal) is None


def test_a_secret_of_something_else_is_left_alone(terminal: Terminal) -> None:
    terminal.put_secret("tls", {"tls.key": "QQ=="}, {})
    answer = terminal.run("key", "create", "tls", "ann")
    assert (answer.status, answer.out) == (1, "")
    assert f"kubectl label secret tls {LABEL_API_KEYS}=true" in answer.error
    assert list(terminal.secrets["tls"]["data"]) == ["tls.key"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("create", "clients", "ann smith"), "names no client"),
        (("create", "clients", "-ann"), "required: CLIENT"),
        (("create", "clients", "ann", "--models", "chat,"), "names no service"),
        (("create", "clients", "ann", "--models", "../chat"), "names no service"),
        (("create", "clients", "ann", "--concurrency", "0"), "write a whole number from 1"),
        (("create", "clients"), "required: CLIENT"),
        ((), "required: ACTION"),
    ],
)
def test_a_bad_word_is_refused_before_kubectl_runs(
    terminal: Terminal, words: tuple[str, ...], message: str
) -> None:
    answer = terminal.run("key", *words)
    assert (answer.status, message in answer.error, terminal.calls) == (2, True, [])


def test_an_error_of_kubectl_is_shown_and_no_key(terminal: Terminal) -> None:
    terminal.refuse('Error from server (Forbidden): secrets is forbidden: User "ann" cannot get resource')
    answer = terminal.run("key", "create", "clients", "ann", "-n", "shop")
    assert (answer.status, answer.out) == (1, "")
    assert "kubectl says: Error from server (Forbidden)" in answer.error
    assert "--namespace=shop" in terminal.calls[0]
