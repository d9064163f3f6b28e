"""Which grammars the engine compiles when, which it keeps, and whose sequences fail for one."""

import ctypes
import math
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from millrace_runtime.grammar.messages import PROOF_SECONDS, PROOF_STACK_BYTES
from millrace_runtime.protocol.messages import Grammar
from millrace_runtime.replica.grammar_compiler import (
    COMPILE_SECONDS,
    STACK_BYTES,
    Compiled,
    GrammarCompiler,
    KeptGrammars,
    may_force,
    read_thread_time,
)
from testing.polling import wait_until
from tests.runtime.engine.engine_driver import AnyRoot, build_grammar, request


@dataclass
class Gate:
    """A compiler whose compiles of some grammars wait, and a clock."""

    now: float = 0.0
    begun: list[str] = field(default_factory=list)
    opened: dict[str, threading.Event] = field(default_factory=dict)
    done: list[int] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.compiler = GrammarCompiler(self.compile, lambda: None, lambda _: self.now)

    def compile(self, grammar: Grammar) -> AnyRoot:
        self.begun.append(grammar.text)
        if grammar.text in self.opened:
            self.opened[grammar.text].wait(10)
        return AnyRoot()

    def ask(self, number: int, text: str, seconds: float = 0.0) -> None:
        wanted = Grammar(text, 1, seconds)
        self.compiler.begin(msgspec.structs.replace(request(number, [1]), grammar=wanted))

    def pop(self) -> list[int]:
        for generate, _, error in self.compiler.pop_compiled():
            self.done += [new.sequence_id for new in generate.sequences]
            self.errors |= {new.sequence_id: error for new in generate.sequences if error}
        return self.done

    def close(self, *texts: str) -> None:
        self.opened |= {text: threading.Event() for text in texts}


@pytest.fixture
def gate() -> "Gate":
    return Gate()


def test_a_grammar_that_takes_long_is_compiled_beside_the_others(gate: Gate) -> None:
    gate.close("long")
    gate.ask(1, "long", seconds=1.5)
    gate.ask(2, "short")
    wait_until("the short one is compiled", lambda: gate.pop() == [2])
    gate.opened["long"].set()
    wait_until("the long one is compiled", lambda: gate.pop() == [2, 1])
    gate.close("other")
    gate.ask(3, "other", seconds=1.5)
    gate.ask(4, "long", seconds=1.5)  # which is kept
    wait_until("the kept one is there", lambda: gate.pop() == [2, 1, 4])
    gate.opened["other"].set()


def test_a_compilation_has_the_limits_of_its_proof(gate: Gate) -> None:
    """The same text takes the same CPU time. The stack has room for what else a thread has."""
    assert PROOF_SECONDS[-1] == COMPILE_SECONDS
    assert STACK_BYTES == 8 * PROOF_STACK_BYTES
    gate.compiler = GrammarCompiler(gate.compile, lambda: None)
    gate.close("a")
    gate.ask(1, "a")
    wait_until("it begins", lambda: gate.begun == ["a"])
    [waiting] = gate.compiler._waiting
    burn_until = time.thread_time() + 0.05
    while time.thread_time() < burn_until:  # only its own thread's time counts
        pass
    assert 0 <= read_thread_time(waiting.thread) - waiting.began_at < 0.04
    gate.opened["a"].set()
    own = time.thread_time()
    assert own <= read_thread_time(threading.get_ident()) < own + 0.05


def test_the_clock_of_a_grammar_begins_with_its_turn(gate: Gate) -> None:
    gate.close("a", "b")
    gate.ask(1, "a")
    gate.ask(2, "b")
    wait_until("the first begins", lambda: gate.begun == ["a"])
    gate.now = COMPILE_SECONDS - 0.5
    assert gate.pop() == []
    gate.opened["a"].set()
    wait_until("the second begins", lambda: gate.begun == ["a", "b"] and gate.pop() == [1])
    gate.now = 2 * COMPILE_SECONDS - 1
    assert gate.pop() == [1]
    gate.now += 0.5
    assert gate.pop() == [1, 2]
    assert gate.errors == {2: "compiling the grammar took more than 2 s of CPU time: make it smaller"}
    gate.opened["b"].set()


def test_a_grammar_that_nobody_waits_for_is_not_compiled(gate: Gate) -> None:
    gate.close("a")
    for number, text in enumerate("abc"):
        gate.ask(number, text)
    gate.compiler.abort(1)
    assert gate.compiler.num_waiting == 2
    gate.opened["a"].set()
    wait_until("the rest is compiled", lambda: gate.pop() == [0, 2])
    assert gate.begun == ["a", "c"]


@pytest.mark.parametrize("is_optional", [True, False])
def test_without_an_optional_grammar_the_text_is_free(*, is_optional: bool) -> None:
    compiler = GrammarCompiler(build_grammar, lambda: None)
    wanted = Grammar("wrong", is_optional=is_optional)
    compiler.begin(msgspec.structs.replace(request(1, [1]), grammar=wanted))
    done: list[Compiled] = []
    wait_until("it is tried", lambda: done.extend(compiler.pop_compiled()) or done)
    assert (done[0].request.grammar, done[0].matchers) == (None if is_optional else wanted, [])
    assert (done[0].error is None) == is_optional


@pytest.mark.parametrize(
    ("grammar", "asked", "forces"),
    [
        (Grammar("a"), {"bias": {1: -2.0}, "min_tokens": 3}, True),
        (Grammar("a", is_of_client=True), {}, True),
        (Grammar("a", is_optimistic=True), {}, False),
        (Grammar("a"), {"bias": {1: -math.inf}}, False),
        (Grammar("a"), {"allowed": b"\xff" * 8}, False),
        (Grammar("a"), {"bad_words": [[1, 2]]}, False),
    ],
)
def test_a_grammar_forces_no_token_that_may_be_banned(
    grammar: Grammar, asked: dict[str, Any], *, forces: bool
) -> None:
    generate = msgspec.structs.replace(request(1, [1], **asked), grammar=grammar)
    assert may_force(generate, generate.sequences[0].sampling) == forces


def test_the_grammars_that_were_used_last_are_kept_within_both_bounds() -> None:
    kept = KeptGrammars(max_bytes=100, max_count=3)

    def put(text: str, num_bytes: int) -> str:
        kept.put(Grammar(text, num_bytes), AnyRoot())
        return "".join(text for text in "abcdef" if Grammar(text) in kept)

    assert [put(text, 40) for text in "ab"] == ["a", "ab"]
    assert kept.get(Grammar("a")) is not None
    assert put("c", 40) == "ac"
    assert put("c", 40) == "ac"
    assert put("d", 10) == "acd"
    assert put("e", 10) == "cde"
    assert put("f", 200) == ""
    assert put("a", 100) == "a"


def test_the_threads_have_a_stack_of_their_own_size() -> None:
    before = threading.stack_size(1 << 20)
    try:
        gate = Gate()
        assert threading.stack_size() == 1 << 20
    finally:
        threading.stack_size(before)
    sizes = []
    gate.compiler._compile = lambda _: sizes.append(_stack_bytes()) or AnyRoot()  # type: ignore[func-returns-value]
    gate.ask(1, "short")
    gate.ask(2, "long", seconds=1.5)
    wait_until("both are compiled", lambda: len(gate.pop()) == 2)
    assert sizes == [STACK_BYTES] * 2


def _stack_bytes() -> int:
    """Return the size of this thread's stack."""
    libc, attributes, size = ctypes.CDLL(None), ctypes.create_string_buffer(64), ctypes.c_size_t()
    libc.pthread_getattr_np(ctypes.c_ulong(threading.get_ident()), attributes)
    libc.pthread_attr_getstacksize(attributes, ctypes.byref(size))
    return size.value
