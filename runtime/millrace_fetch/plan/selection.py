"""Selects the files of a model that a replica needs. Pure.

The selection is an allow-list: repositories also hold the same weights in other formats, and code.
"""

import json
import re
from collections.abc import Collection

from millrace_fetch.errors import SourceError, UnfitFileError
from millrace_fit.files.formats import explain_formats, find_formats
from millrace_fit.files.needed import (
    CONFIG,
    INDEX,
    POINTER_BYTES,
    SMALL_FILES,
    WHOLE,
    choose_weights,
    explain_pointer,
    explain_tokenizer,
    is_indexed,
    is_template,
    list_small,
)

_USUAL_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")


def select(names: Collection[str], shards: Collection[str] | None) -> list[str]:
    """Return the names to fetch: small files, then weights. `shards` are those of the index, or None.

    A model without a tokenizer.json is fetched too: somebody may want to convert its tokenizer.
    """
    if is_of_another_format(names):
        raise SourceError(explain_formats(names))
    check_config(names)
    check_shards(names, shards)
    weights = choose_weights(names, shards)
    if not weights:
        raise SourceError(explain_formats(names))
    return [*list_small(names), *([INDEX] if is_indexed(names) else ()), *weights]


def is_of_another_format(names: Collection[str]) -> bool:
    """Whether the files hold weights, but only in formats that no replica reads.

    False without any weights, and with an index: an upload may be in progress. Subfolders do not
    count: they may hold other weights, such as an adapter.
    """
    if INDEX in names or any(name.endswith(".safetensors") and "/" not in name for name in names):
        return False
    return bool(find_formats(names))


def check_config(names: Collection[str]) -> None:
    """Raise SourceError if there is no config.json."""
    if CONFIG in names:
        return
    below = next((name for name in sorted(names) if name.endswith(f"/{CONFIG}")), None)
    there = "" if below is None else f". {below[:80]} is in a folder below, where replicas do not look"
    raise SourceError(
        f"there is no {CONFIG}: only models with {CONFIG} and *.safetensors can be served{there}"
    )


def check_tokenizer(names: Collection[str]) -> None:
    """Raise UnfitFileError if there is no tokenizer that a replica reads."""
    if fault := explain_tokenizer(names):
        raise UnfitFileError(fault)


def may_be_pointer(size_bytes: int | None) -> bool:
    """Whether a file of this size may be a pointer of Git LFS."""
    return size_bytes is None or size_bytes <= POINTER_BYTES


def check_pointer(name: str, start: bytes) -> None:
    """Raise UnfitFileError if a file is, by its start, a pointer of Git LFS."""
    if fault := explain_pointer(name, start):
        raise UnfitFileError(fault)


def read_shards(index: bytes) -> frozenset[str]:
    """Return the weight files that an index names. Raises SourceError for an unreadable index."""
    check_pointer(INDEX, index)
    try:
        found = frozenset(json.loads(index)["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(f"{INDEX} can't be read: it has no weight_map of names") from error
    if not found or not all(isinstance(name, str) for name in found):
        raise SourceError(f"{INDEX} can't be read: it has no weight_map of names")
    return found


def check_shards(names: Collection[str], shards: Collection[str] | None) -> None:
    """Raise SourceError if a file of the index is absent."""
    if absent := sorted(set(shards or ()) - set(names)):
        raise SourceError(f"{INDEX} names {absent[0]}, which is not there: the model is incomplete")


def find_surely_read(names: Collection[str], shards: Collection[str] | None) -> list[str]:
    """Return the files whose tensors a replica surely reads, if these are only some of a model's files.

    Without an index these are the files with the usual names: beside them a replica reads no other.
    """
    if shards is not None and WHOLE not in names:
        return sorted(set(shards) & set(names))
    return [WHOLE] if WHOLE in names else sorted(filter(is_usual, names))


def is_usual(name: str) -> bool:
    """Whether a weight file has the name that nearly all models use."""
    return name == WHOLE or _USUAL_SHARD.fullmatch(name) is not None


def is_read(name: str) -> bool:
    """Whether a replica may read a file of this name, also if no index names it."""
    is_weight = "/" not in name and name.endswith(".safetensors")
    return name in (*SMALL_FILES, INDEX) or is_template(name) or is_weight
