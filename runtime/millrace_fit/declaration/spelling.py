"""Other names of the same tensors: some tools save a part of a model, or the parts by the class's names."""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

Spelling = Mapping[str, str]
"""By the beginning of a name in files: the beginning that the family declares."""

FLAT: Final[Spelling] = MappingProxyType(
    {name: f"model.{name}" for name in ("embed_tokens.", "layers.", "norm.")}
)
"""Of a model that was saved without its head, as embedding models are."""


def spell(names: Collection[str], spellings: Iterable[Spelling]) -> dict[str, str]:
    """Return the family's name for each name in files. The first spelling that a name has is that of all.

    Names that would meet stay as they are: one of the two tensors would be lost.
    """
    for spelling in spellings:
        beginnings = tuple(spelling)
        if any(name.startswith(beginnings) for name in names):
            spelt = {name: _replace_beginning(name, spelling) for name in names}
            if len(set(spelt.values())) == len(spelt):
                return spelt
    return {name: name for name in names}


def _replace_beginning(name: str, spelling: Spelling) -> str:
    for stored, declared in spelling.items():
        if name.startswith(stored):
            return declared + name.removeprefix(stored)
    return name
