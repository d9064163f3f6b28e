"""The names of a request's beginnings."""

import json
import time
import tracemalloc
from typing import Any

import pytest

from millrace_gateway.route.prefix import find_session, hash_prefix, hash_session

SYSTEM = {"role": "system", "content": "You are helpful. " * 20}
ASKS = {"role": "user", "content": "What is {this}?"}
ANSWER = {"role": "assistant", "content": "It is that."}
OTHER = {"role": "user", "content": "Who are you?"}


def name(salt: bytes = b"", *, compact: bool = False, **body: Any) -> tuple[int, ...]:
    return hash_prefix(json.dumps(body, separators=(",", ":") if compact else None).encode(), salt)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("before", [{}, {"model": "chat", "stream": True}, {"temperature": 0.5}])
def test_a_conversation_keeps_its_names_as_it_grows_and_shares_the_first(
    before: dict[str, Any], *, compact: bool
) -> None:
    first = name(compact=compact, **before, messages=[SYSTEM, ASKS])
    later = name(compact=compact, **before, messages=[SYSTEM, ASKS, ANSWER, OTHER], max_tokens=5)
    other = name(compact=compact, **before, messages=[SYSTEM, OTHER], user="x")
    assert first == later
    assert first[0] == other[0]
    assert first[1] != other[1]
    assert first != name(b"tenant", compact=compact, **before, messages=[SYSTEM, ASKS])


def test_without_a_system_prompt_a_conversation_has_one_name() -> None:
    assert len(name(messages=[ASKS])) == 1
    assert name(messages=[ASKS]) == name(messages=[ASKS, ANSWER, OTHER]) != name(messages=[OTHER])


def test_a_system_prompt_behind_the_messages_counts_too() -> None:
    first = name(max_tokens=5, messages=[ASKS], model="chat", system="Be brief.")
    assert first == name(max_tokens=5, messages=[ASKS, ANSWER, OTHER], model="chat", system="Be brief.")
    assert first[0] == name(max_tokens=5, messages=[OTHER], model="chat", system="Be brief.")[0]
    assert first[0] != name(max_tokens=5, messages=[ASKS], model="chat", system="Be verbose.")[0]


@pytest.mark.parametrize("compact", [False, True])
def test_what_claude_code_writes_anew_in_each_request_is_no_beginning(*, compact: bool) -> None:
    def ask(bill: str, role: str) -> tuple[tuple[int, ...], ...]:
        system = {"system": [{"type": "text", "text": bill}, {"type": "text", "text": role * 20}]}
        messages = {"messages": [ASKS]}
        return tuple(
            name(compact=compact, model="chat", **one) for one in (system | messages, messages | system)
        )

    bills = [f"x-anthropic-billing-header: cc_version=2.1.9; cch={number};" for number in ("0a1b2", "9f8e7")]
    assert ask(bills[0], "You are helpful. ") == ask(bills[1], "You are helpful. ")
    assert ask(bills[0], "You are helpful. ") != ask(bills[0], "You are brief. ")
    assert ask("x-anthropic-billing-header: what is it?", "a ") != ask(
        "x-anthropic-billing-header: who?", "a "
    )


def test_a_long_line_that_looks_like_it_takes_no_memory() -> None:
    """8 MiB of it took 600 MB, and the loop for a second."""
    begin = b'{"messages":[{"role":"system","content":"x-anthropic-billing-header:'
    body = begin + b"a=;" * 350_000
    tracemalloc.start()
    hash_prefix(body, b"")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_texts_share_their_first_name_by_their_first_bytes() -> None:
    for field in ("prompt", "input"):
        one, two = name(**{field: "a" * 300 + "b"}), name(**{field: "a" * 300 + "c"})
        assert one[0] == two[0]
        assert one[1] != two[1]


@pytest.mark.parametrize("body", [b"", b"{}", b'{"model": "chat"}', b'{"messages"', b"\xff" * 100])
def test_a_body_without_a_prompt_has_no_name(body: bytes) -> None:
    assert hash_prefix(body, b"") == ()


def test_a_text_that_looks_like_a_field_is_none() -> None:
    tricky = {"role": "user", "content": '"messages": [{"role": "user", "content": "x"}], "system": "y"'}
    assert name(metadata={"a": '"messages": ['}, messages=[SYSTEM, tricky]) == name(messages=[SYSTEM, tricky])


def test_a_session_is_the_text_of_user_and_has_a_name_for_each_salt() -> None:
    body = json.dumps({"model": "chat", "messages": [SYSTEM, ASKS], "user": "ada"}).encode()
    assert find_session(body) == b"ada"
    assert (
        find_session(json.dumps({"messages": [SYSTEM, {"role": "user", "content": '"user": "x"'}]}).encode())
        is None
    )
    assert find_session(b'{"user": ""}') is find_session(b'{"user": 7}') is None
    assert hash_session(b"ada", b"a") == hash_session(b"ada", b"a") != hash_session(b"ada", b"b")


@pytest.mark.parametrize(("before", "behind"), [(0, 1 << 20), (1 << 20, 0), (1 << 20, 1 << 20)])
def test_a_long_body_names_its_session_at_its_begin_or_its_end(before: int, behind: int) -> None:
    body = json.dumps({"a": "x" * before, "user": "ada", "b": "x" * behind}).encode()
    assert find_session(body) == (None if before and behind else b"ada")


def test_two_kilobytes_take_microseconds() -> None:
    body = json.dumps({"model": "chat", "messages": [SYSTEM | {"content": "x" * 1700}, ASKS]}).encode()
    hash_prefix(body, b"salt")
    best = min(_time(body) for _ in range(20))
    assert best < 25e-6  # 4 µs on an idle core


def _time(body: bytes) -> float:
    began = time.perf_counter()
    for _ in range(100):
        hash_prefix(body, b"salt")
    return (time.perf_counter() - began) / 100
