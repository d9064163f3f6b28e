"""One proof, in a process of its own that ends with it: its limits, and a compiled grammar's memory."""

import ctypes
import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.grammar import (
    explain_fault,
    list_trials,
    list_written,
    widen_all,
    widen_one,
    widen_refused,
    write_grammar,
)
from millrace_runtime.grammar.matcher import Matcher, Vocabulary
from millrace_runtime.grammar.messages import PROOF_STACK_BYTES, TOO_LONG
from millrace_runtime.grammar.source import GrammarKind
from millrace_runtime.grammar.trial import try_beginnings
from millrace_runtime.protocol.messages import Grammar

MEMORY_BYTES: Final = 64 << 20
"""Of data, while it compiles."""
MAX_BYTES: Final = 8 << 20
"""Of a compiled grammar. An object of 200 objects of five texts each takes 4 MB, and no public schema more.
The engine frees a compiled grammar under its global lock: 2.5 ms a megabyte."""
_NICENESS = 5
"""For each level after the first: long proofs compute beside the model."""
_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
"""Of `mallinfo2` in glibc."""


class _Allocated(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS.split(" ")]


_libc = ctypes.CDLL(None)
_libc.mallinfo2.restype = _Allocated


def prove(vocabulary: Vocabulary, kind: str, source: str, ahead: str) -> Grammar:
    """Write a grammar and compile it, as the engine will. Raises GrammarError.

    `ahead` is the grammar of the reasoning before the answer, as `GrammarSource` has it. A client that forces
    a call and calls no tool strict gets a call even if a tool's schema, often another server's, can't be kept
    or fails its trial, or if the schemas of all tools together are too large.
    """
    refusal = GrammarError()
    for wide in _list_wider(kind, source):
        try:
            grammar = _prove(vocabulary, kind, wide, ahead)
        except GrammarError as error:
            refusal = error
        else:
            return _mark_provisional(grammar) if TOO_LONG in str(refusal) else grammar
    raise refusal


def _list_wider(kind: str, source: str) -> Iterator[str]:
    """Yield the source; of a grammar of ours then those that keep fewer schemas of tools."""
    yield source
    for widen in (widen_refused, widen_all) if kind == GrammarKind.LARK else ():
        if (wide := widen(source)) != source:
            yield wide


def _prove(vocabulary: Vocabulary, kind: str, source: str, ahead: str) -> Grammar:
    grammar = _compile(vocabulary, kind, source, ahead)
    wide, is_provisional = source, False
    for number, document in enumerate(list_written(GrammarKind(kind), source, ahead, grammar.text)):
        try:
            for part, trials in list_trials(document):
                try_beginnings(vocabulary, part, trials)
        except GrammarError as error:
            wider = widen_one(wide, number) if kind == GrammarKind.LARK else wide
            if wider == wide:
                raise
            wide, is_provisional = wider, is_provisional or TOO_LONG in str(error)
    if wide != source:
        grammar = _compile(vocabulary, kind, wide, ahead)
    return _mark_provisional(grammar) if is_provisional else grammar


def _mark_provisional(grammar: Grammar) -> Grammar:
    return msgspec.structs.replace(grammar, is_provisional=True)


def _compile(vocabulary: Vocabulary, kind: str, source: str, ahead: str) -> Grammar:
    began = time.thread_time()
    text = _write(vocabulary, kind, source, ahead)
    is_of_client = kind == GrammarKind.GRAMMAR
    before = _count_allocated()
    try:
        compiled = Matcher.build(vocabulary, text, is_of_client=is_of_client)
    except GrammarError as error:
        raise GrammarError(explain_fault(GrammarKind(kind), source, ahead, str(error))) from error
    num_bytes = max(0, _count_allocated() - before)
    del compiled
    if num_bytes > MAX_BYTES:
        raise GrammarError(f"it takes {num_bytes} bytes of memory, more than {MAX_BYTES}: make it smaller")
    return Grammar(text, num_bytes, time.thread_time() - began, is_of_client=is_of_client)


def _write(vocabulary: Vocabulary, kind: str, source: str, ahead: str) -> str:
    """Return the grammar's text. It forces no tokens if its letters have those of a special token in them.

    The tokenizer makes that token of these letters, and no text of a grammar has it: each answer would fail.
    """
    text = write_grammar(GrammarKind(kind), source, ahead)
    if not vocabulary.special_texts.occur_in(text):
        return text
    return write_grammar(GrammarKind(kind), source, ahead, is_forcing=False)


def limit_process(seconds: float, level: int) -> None:
    """Have the kernel end this process after so many seconds of CPU time, or with too much memory."""
    os.nice(_NICENESS * level)
    data = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (data, data))
    resource.setrlimit(resource.RLIMIT_STACK, (PROOF_STACK_BYTES, PROOF_STACK_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _count_allocated() -> int:
    found = _libc.mallinfo2()
    return int(found.uordblks + found.hblkhd)
