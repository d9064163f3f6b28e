"""The head of a model that is in a folder of this machine: the files that a replica would read."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace_fetch.errors import CorruptError, SourceError
from millrace_fetch.plan.head import ModelHead, merge, parse_config
from millrace_fetch.plan.selection import CONFIG, INDEX, SMALL_FILES, WHOLE, read_shards
from millrace_fit.errors import HeaderError
from millrace_fit.headers import LENGTH_BYTES, StoredTensor, parse_header, read_length


def read_local_head(folder: Path) -> ModelHead:
    """Return a folder's head. Raises SourceError or CorruptError."""
    with _naming_what_fails(folder):
        if not (folder / CONFIG).is_file():
            raise SourceError(
                f"{folder} holds no {CONFIG}: give the folder of a model in Hugging Face's layout"
            )
        names = frozenset(path.name for path in folder.iterdir())
        config = parse_config((folder / CONFIG).read_bytes())
        files = [folder / name for name in _find_weights(folder, names)]
        tensors = merge({file.name: _read_file(file) for file in files})
        return ModelHead("", config, tensors, names, sum(file.stat().st_size for file in files))


def measure_files(folder: Path, names: frozenset[str]) -> list[int]:
    """Return the sizes of the files that a replica reads, of those with these names. Raises SourceError."""
    with _naming_what_fails(folder):
        read = [*sorted(names.intersection((*SMALL_FILES, INDEX))), *_find_weights(folder, names)]
        return [(folder / name).stat().st_size for name in read]


@contextmanager
def _naming_what_fails(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceError(f"{error.filename or folder} can't be read: {error.strerror}") from error


def _find_weights(folder: Path, names: frozenset[str]) -> list[str]:
    """Return those of the index, else the usual one, else all, as `execution/checkpoint.py` does."""
    if INDEX in names:
        shards = sorted(read_shards((folder / INDEX).read_bytes()))
        if absent := [name for name in shards if name not in names]:
            raise SourceError(f"{INDEX} names {absent[0]}, which is not there: the model is incomplete")
        return shards
    if WHOLE in names:
        return [WHOLE]
    return sorted(name for name in names if name.endswith(".safetensors"))


def _read_file(file: Path) -> dict[str, StoredTensor]:
    size = file.stat().st_size
    try:
        with file.open("rb") as opened:
            length = read_length(opened.read(LENGTH_BYTES), size)
            return parse_header(opened.read(length), size)
    except HeaderError as error:
        raise CorruptError(f"{file} is no safetensors file that can be read: {error}") from error
