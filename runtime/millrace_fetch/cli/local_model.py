"""Reads the head of a model in a local folder, and resolves it: there is nothing to fetch."""

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from millrace_fetch.errors import CorruptError, FolderError, SourceError, UnfitFileError
from millrace_fetch.plan.head import ModelHead, Resolved, describe_head, merge, parse_config
from millrace_fetch.plan.selection import (
    check_pointer,
    check_shards,
    check_tokenizer,
    read_shards,
)
from millrace_fit.errors import HeaderError
from millrace_fit.files.headers import LENGTH_BYTES, StoredTensor, parse_header, read_length
from millrace_fit.files.needed import (
    CONFIG,
    INDEX,
    MODELOPT,
    POINTER_BYTES,
    TEMPLATE_FOLDER,
    TOKENIZER,
    choose_weights,
    explain_choice,
    is_indexed,
    list_small,
)
from millrace_fit.units import show_bytes


def resolve_folder(folder: Path, path: Path) -> str:
    """Resolve the model in a local folder into a JSON file, and return a summary line. Raises FetchError.

    A model without all of its files is an error that a retry may resolve: a copy may be in progress.
    """
    with _stopping_at_sigterm():
        head = read_local_head(folder)
        facts = describe_head(head)
        is_complete = head.fault is not None and TOKENIZER in head.names  # but a file is a pointer
        if facts.shape is not None and facts.fault is not None and not is_complete:
            raise SourceError(f"{folder} has no whole model: {facts.fault}")
        if head.fault is not None:
            write_resolved(Resolved(None, 0, None, facts), path)
            return f"{folder} has a model that no replica can serve: {facts.fault}"
        if choice := explain_choice(head.names):
            sys.stderr.write(f"millrace fetch: {choice}\n")
        sizes = measure_files(folder, head.names)
        found = Resolved(None, len(sizes), sum(sizes), facts)
    write_resolved(found, path)
    return f"{folder} has a model: {found.num_files} files, {show_bytes(sum(sizes))}"


def write_resolved(found: Resolved, path: Path) -> None:
    """Write a resolved model into a file. Raises FolderError."""
    try:
        path.write_text(found.render(), encoding="utf-8")
    except OSError as error:
        raise FolderError(f"{path} can't be written: {error.strerror}") from error


@contextmanager
def _stopping_at_sigterm() -> Iterator[None]:
    """Stop at SIGTERM, also during a slow read: a container's process 1 ignores the signal by default."""
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(*_: object) -> NoReturn:
    raise asyncio.CancelledError


def read_local_head(folder: Path) -> ModelHead:
    """Return the head of the model in a local folder. Raises SourceError or CorruptError."""
    with _naming_failures(folder):
        if not (folder / CONFIG).is_file():
            raise SourceError(
                f"{folder} holds no {CONFIG}: give the folder of a model in Hugging Face's layout"
            )
        names, config = _list_names(folder), dict[str, Any]()
        try:
            beside = (folder / MODELOPT).read_bytes() if MODELOPT in names else None
            config = parse_config((folder / CONFIG).read_bytes(), beside)
            files = [folder / name for name in _find_weights(folder, names)]
            if files:  # without weights their format is the fault, and a conversion makes a tokenizer too
                _check_tokenizer(folder, names)
            tensors = merge({file.name: _read_file(file) for file in files})
        except UnfitFileError as error:
            return ModelHead("", config, {}, names, 0, fault=str(error))
        return ModelHead("", config, tensors, names, sum(file.stat().st_size for file in files))


def _list_names(folder: Path) -> frozenset[str]:
    """Return the names of the folder's entries, and of the chat templates in a folder below it."""
    templates = (folder / TEMPLATE_FOLDER).glob("*")
    return frozenset(path.relative_to(folder).as_posix() for path in (*folder.iterdir(), *templates))


def _check_tokenizer(folder: Path, names: frozenset[str]) -> None:
    check_tokenizer(names)
    with (folder / TOKENIZER).open("rb") as file:
        check_pointer(TOKENIZER, file.read(POINTER_BYTES))


def measure_files(folder: Path, names: frozenset[str]) -> list[int]:
    """Return the sizes of those of the named files that a replica reads. Raises SourceError."""
    with _naming_failures(folder):
        index = [INDEX] if is_indexed(names) else []
        read = [*list_small(names), *index, *_find_weights(folder, names)]
        return [(folder / name).stat().st_size for name in read]


@contextmanager
def _naming_failures(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceError(f"{error.filename or folder} can't be read: {error.strerror}") from error


def _find_weights(folder: Path, names: frozenset[str]) -> list[str]:
    shards = read_shards((folder / INDEX).read_bytes()) if is_indexed(names) else None
    check_shards(names, shards)
    return choose_weights(names, shards)


def _read_file(file: Path) -> dict[str, StoredTensor]:
    size = file.stat().st_size
    try:
        with file.open("rb") as opened:
            check_pointer(file.name, opened.read(POINTER_BYTES))
            opened.seek(0)
            length = read_length(opened.read(LENGTH_BYTES), size)
            return parse_header(opened.read(length), size)
    except HeaderError as error:
        raise CorruptError(f"{file} is no safetensors file that can be read: {error}") from error
