"""Heartbeats in shared memory: each process writes its own, and the supervisor reads them.

A page holds one heartbeat for each process, and the failure that a process reports. Times are
time.monotonic(), which is one clock for all processes of a machine.
"""

import enum
import mmap
import os
import struct
from dataclasses import dataclass


class Phase(enum.IntEnum):
    """The activity of a process. Each phase has a deadline for the next heartbeat."""

    LOADING = 1
    WARMING = 2
    STEPPING = 3  # at its main loop: the engine's steps, the HTTP process's event loop
    REFUSING = 4  # the HTTP process at its loop, but it takes no new request


class Member(enum.IntEnum):
    """A process with a heartbeat. Its number is its place in the page."""

    ENGINE = 0
    HTTP = 1


@dataclass(frozen=True)
class Beat:
    """The newest heartbeat of a process."""

    phase: Phase
    time: float


@dataclass(frozen=True)
class Deadlines:
    """How long a process may be without a heartbeat, in seconds."""

    startup: float
    step: float

    def of(self, phase: Phase) -> float:
        """Return the deadline of a phase."""
        return self.step if phase in (Phase.STEPPING, Phase.REFUSING) else self.startup


_TICKS_A_SECOND = 1_000_000
_PHASE_BITS = 3
_LENGTH = struct.Struct("=H")
_WORDS_AT = 1024
_MAX_WORDS_BYTES = 2048


class Heartbeat:
    """The shared page."""

    def __init__(self, fd: int) -> None:
        """Map the page behind an inherited descriptor."""
        self.fd = fd
        self._page = mmap.mmap(fd, mmap.PAGESIZE)
        self._beats = memoryview(self._page).cast("q")

    @classmethod
    def create(cls, now: float) -> "Heartbeat":
        """Return a new page, in which every process is loading since `now`."""
        fd = os.memfd_create("millrace-heartbeat")
        os.ftruncate(fd, mmap.PAGESIZE)
        heartbeat = cls(fd)
        for member in Member:
            heartbeat.beat(member, Phase.LOADING, now)
        return heartbeat

    def beat(self, member: Member, phase: Phase, now: float) -> None:
        """Write a heartbeat: time and phase in one aligned word, so that no reader sees half of it.

        `struct.pack_into` first clears the bytes. A CPU quota can stop a process just then: under load the
        supervisor read the phase 0, which does not exist, and the replica ended with its streams.
        """
        self._beats[member] = int(now * _TICKS_A_SECOND) << _PHASE_BITS | phase

    def read(self, member: Member) -> Beat:
        """Return the newest heartbeat."""
        word = self._beats[member]
        return Beat(Phase(word & (1 << _PHASE_BITS) - 1), (word >> _PHASE_BITS) / _TICKS_A_SECOND)

    def write_failure(self, text: str) -> None:
        """Report in one line why this process ends. The supervisor writes it as the last line of the log."""
        words = " ".join(text.split()).encode()[:_MAX_WORDS_BYTES]
        _LENGTH.pack_into(self._page, _WORDS_AT, len(words))
        self._page[_WORDS_AT + _LENGTH.size : _WORDS_AT + _LENGTH.size + len(words)] = words

    def read_failure(self) -> str | None:
        """Return the line of a failed process; None without one."""
        (length,) = _LENGTH.unpack_from(self._page, _WORDS_AT)
        at = _WORDS_AT + _LENGTH.size
        return self._page[at : at + length].decode(errors="ignore") if length else None

    def find_fault(self, deadlines: Deadlines, now: float) -> str | None:
        """Return why the replica is about to end, or which process hangs; None while all is well."""
        return self.read_failure() or self.find_stall(deadlines, now)

    def find_unready(self, deadlines: Deadlines, now: float) -> str | None:
        """Return why the replica can't take a request; None if it can, whatever its load."""
        engine, http = (self.read(member).phase for member in (Member.ENGINE, Member.HTTP))
        if (fault := self.find_fault(deadlines, now)) is not None:
            return fault
        if engine is not Phase.STEPPING:
            return f"the engine is {engine.name.lower()}"
        if http is Phase.REFUSING:
            return "the HTTP process refuses new requests: it drains, or waits for its tokenizer"
        return None if http is Phase.STEPPING else "the HTTP process is loading"

    def find_stall(self, deadlines: Deadlines, now: float) -> str | None:
        """Return a sentence about the process that hangs; None while each is within its deadline."""
        for member in Member:
            beat = self.read(member)
            silence, deadline = now - beat.time, deadlines.of(beat.phase)
            if silence > deadline:
                return (
                    f"{member.name.lower()}: no progress for {silence:.0f} s while {beat.phase.name.lower()};"
                    f" the deadline is {deadline:g} s"
                )
        return None

    def close(self) -> None:
        """Unmap the page. Other processes keep their mapping."""
        self._beats.release()
        self._page.close()
        os.close(self.fd)
