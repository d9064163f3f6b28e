"""The services to which a model name without a namespace leads."""

import argparse
from typing import Any

import pytest

from millrace_kubernetes.flags import parse_short_name
from millrace_kubernetes.model_names import ModelNames, Standing, read_running_name

A, B, A2 = ("a", "chat"), ("b", "chat"), ("a", "other")


def make_names(pins: dict[str, tuple[str, str]] | None = None) -> tuple[ModelNames[tuple[str, str]], list]:
    changed: list[tuple[str, str]] = []
    return ModelNames(pins or {}, changed.append), changed


def test_a_name_leads_to_a_service_while_one_namespace_claims_it() -> None:
    names, changed = make_names()
    names.put(A, "chat")
    names.put(A2, "chat")
    assert set(names.find("chat")) == {A, A2}
    names.put(B, "chat")
    assert names.find("chat") == ()
    assert {names.judge(key) for key in (A, A2, B)} == {Standing.SHARED}
    assert sorted(changed) == [A, A2]
    changed.clear()
    names.put(("c", "chat"), "chat")  # of two or of three, nobody's standing is another
    names.remove(("c", "chat"))
    names.put(A, "chat")
    assert changed == []
    names.put(B, "mine")
    assert set(names.find("chat")) == {A, A2}
    assert (names.find("mine"), names.judge(B)) == ((B,), Standing.HELD)
    assert sorted(changed) == [A, A2]
    for key in (A, A2, B, B):
        names.remove(key)
    assert (names._claims, names._names, names._wanted) == ({}, {}, {})
    assert names.judge(A) is Standing.HELD  # it may go while it is looked at


def test_the_names_that_ready_replicas_run_with_are_claims_too() -> None:
    names, changed = make_names()
    names.put_running(A, frozenset({"old", "chat"}))
    assert names.find("old") == ()  # there are pods, and no service
    names.put(A, "new")
    assert [names.find(name) for name in ("old", "chat", "new")] == [(A,)] * 3
    assert names.list_former(A) == ["chat", "old"]
    names.put(B, "old")
    assert (names.find("old"), names.judge(A), names.judge(B)) == ((), Standing.HELD, Standing.SHARED)
    assert (names.list_former(A), changed) == (["chat"], [A])
    assert names.is_name_of("old", A)  # at its own address
    names.put_running(A, frozenset({"new"}))
    assert (names.find("old"), names.judge(B), changed) == ((B,), Standing.HELD, [A, B])
    assert not names.is_name_of("old", A)
    names.put_running(A, frozenset())
    names.remove(A)
    names.remove(B)
    assert (names._claims, names._running) == ({}, {})


@pytest.mark.parametrize(
    ("containers", "name"),
    [
        ([{"name": "x"}, {"name": "replica", "args": ["serve", "--served-name", "m", "--device"]}], "m"),
        ([{"name": "replica", "args": ["--served-name"]}], None),
        ([{"name": "replica", "args": None}], None),
        ([{"name": "other", "args": ["--served-name", "m"]}], None),
        (None, None),
    ],
)
def test_the_name_that_a_pod_runs_with_is_read(containers: Any, name: str | None) -> None:
    assert read_running_name({"spec": {"containers": containers}}, "replica", "--served-name") == name


def test_a_pinned_name_leads_to_its_service_alone() -> None:
    names, _ = make_names({"chat": A2, "gone": ("a", "gone")})
    names.put(A, "chat")
    names.put(B, "gone")
    assert names.find("chat") == ()  # not made yet, or deleted: nobody else gets its clients
    names.put(A2, "chat-v2")
    assert (names.find("chat"), names.find("chat-v2"), names.find("gone")) == ((A2,), (A2,), ())
    assert [names.judge(key) for key in (A, B, A2)] == [Standing.PINNED, Standing.PINNED, Standing.HELD]
    assert sorted(names.list_held()) == ["chat", "chat-v2"]
    assert names.list_pinned() == ["chat"]


@pytest.mark.parametrize(
    ("name", "is_claimed"),
    [
        ("team/chat", False),
        ("openai/gpt-oss-20b", False),
        ("a/chat", True),
        ("meta-llama/Llama-3.1-8B", True),
        ("x/y/z", True),
    ],
)
def test_an_address_in_another_namespace_can_not_be_claimed(name: str, *, is_claimed: bool) -> None:
    names, _ = make_names()
    names.put(A, name)
    assert names.find(name) == ((A,) if is_claimed else ())
    assert names.judge(A) is (Standing.HELD if is_claimed else Standing.ADDRESS)


def test_the_flag_is_read() -> None:
    assert parse_short_name("org/m=1=team-a/chat") == ("org/m=1", "team-a", "chat")
    for text in ("chat", "=a/b", "chat=a", "chat=a/B", "chat=a/b/c"):
        with pytest.raises(argparse.ArgumentTypeError, match="chat=team-a/chat"):
            parse_short_name(text)
