"""The messages between the HTTP process and the grammar worker, one frame each."""

from typing import Final

import msgspec

from millrace_runtime.protocol.messages import Grammar


class Prove(msgspec.Struct, frozen=True, array_like=True, tag="prove"):
    """Write a client's grammar as the engine takes it, and prove that it can be used."""

    number: int
    """The answer's."""
    kind: str
    source: str
    before: str = ""
    """The grammar of what comes before the answer."""


class Withdraw(msgspec.Struct, frozen=True, array_like=True, tag="withdraw"):
    """Nobody waits for this answer any more."""

    number: int


class Proven(msgspec.Struct, frozen=True, array_like=True, tag="proven"):
    """The engine can compile it, too."""

    number: int
    grammar: Grammar


class Disproven(msgspec.Struct, frozen=True, array_like=True, tag="disproven"):
    """The grammar is at fault. The client may read why."""

    number: int
    why: str


ToGrammarWorker = Prove | Withdraw
FromGrammarWorker = Proven | Disproven
PROOF_SECONDS: Final = (0.1, 0.5, 2.0)
"""Of CPU time, by level. Of 500 schemas in the shape of public ones the slowest took 0.05 s."""
TOO_LONG: Final = "takes too long"
"""In outcomes that depend on a measured time: the next proof of the same grammar may have another one."""
PROOF_STACK_BYTES: Final = 1 << 20
"""A grammar whose rules are nested deep overflows it in its proof, and never the engine's larger stack."""
