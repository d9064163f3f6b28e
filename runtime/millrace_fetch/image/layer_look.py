"""What one layer of an image shows of a model, without the bytes of the weights."""

from collections.abc import Mapping
from typing import IO, NamedTuple

from millrace_fetch.image.look_budget import Budget, EnoughError
from millrace_fetch.image.overlay import ROOT, Member, concerns_model
from millrace_fetch.image.tarball import Entry, Readable, open_tarball, read_whole
from millrace_fetch.plan.selection import CONFIG, INDEX, is_usual
from millrace_fit.errors import HeaderError
from millrace_fit.headers import LENGTH_BYTES, read_length

_INSIDE = f"{ROOT}/"
_ENTRY_BYTES = 300
"""What a member takes beside its name, about."""


class Seen(NamedTuple):
    """What was seen of a layer."""

    members: list[Member]
    """Those that concern the model."""
    contents: Mapping[Member, bytes]
    """config.json and the index whole; of safetensors files the header, with its length before it."""
    is_whole: bool
    """Whether all its entries were seen. Else the layer may have more, or others of the same names."""


UNSEEN = Seen([], {}, is_whole=False)


class Skim:
    """Looks at one layer after the other, the uppermost first."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._has_config = False
        self._has_header = False

    def look(self, file: Readable, size_bytes: int, layer: int) -> Seen:
        """Return what is seen of a layer of so many bytes. Raises SourceError, and what reading raises.

        A layer that can't come whole is left as soon as the model's shape and the type of its numbers are
        known: more of it would tell nothing that counts.
        """
        members: list[Member] = []
        contents: dict[Member, bytes] = {}
        is_small = size_bytes <= self._budget.fetched.left
        try:
            with open_tarball(file, size_bytes, layer, self._budget.unpacked) as tarball:
                for entry in tarball.entries():
                    if concerns_model(entry.member.path):
                        self._budget.kept.spend(len(entry.member.path) + _ENTRY_BYTES)
                        members.append(entry.member)
                        self._keep(entry, contents)
                    if self._knows_enough and tarball.is_compressed and not is_small:
                        return Seen(members, contents, is_whole=False)
        except EnoughError:
            return Seen(members, contents, is_whole=False)
        return Seen(members, contents, is_whole=True)

    @property
    def _knows_enough(self) -> bool:
        return self._has_config and self._has_header

    def _keep(self, entry: Entry, contents: dict[Member, bytes]) -> None:
        member = entry.member
        if not member.is_plain or not member.path.startswith(_INSIDE):
            return
        name = member.path.removeprefix(_INSIDE)
        if name in (CONFIG, INDEX):
            self._budget.kept.spend(member.size_bytes)
            contents[member] = read_whole(entry.open(), member.size_bytes)
            self._has_config |= name == CONFIG
        elif name.endswith(".safetensors"):
            contents[member] = self._read_header(entry.open(), member.size_bytes)
            self._has_header |= is_usual(name)

    def _read_header(self, file: IO[bytes], file_bytes: int) -> bytes:
        """Return the header with its length; the length alone where there can be no such header."""
        first = read_whole(file, LENGTH_BYTES)
        try:
            length = read_length(first, file_bytes)
        except HeaderError:  # told later, if a replica would read the file
            return first
        self._budget.kept.spend(length)
        return first + read_whole(file, length)
