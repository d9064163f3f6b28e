"""The tensors of a model whose files were not all seen: those that config.json describes."""

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from millrace_fit.config import FAMILIES, find_architecture_name, parse_llama_config
from millrace_fit.dtypes import STORED_TYPES
from millrace_fit.errors import ArchitectureError
from millrace_fit.headers import StoredTensor
from millrace_fit.tensors import list_needed

MAX_ASSUMED: Final = 100_000
"""Tensors: those of ten thousand layers. config.json may count more than memory holds."""


def assume_tensors(
    config: Mapping[str, Any], seen: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor] | None:
    """Return the tensors that were seen, and those beside them that the model must have.

    Of a model that no replica serves there are no others. None where nothing tells in which type they are.
    """
    try:
        shape = parse_llama_config(config, FAMILIES[find_architecture_name(config)])
    except ArchitectureError:
        return dict(seen)
    stored_type = _choose_type(config, seen)
    if stored_type is None:
        return None
    needed = {
        name: StoredTensor(stored_type, dims) for name, dims in islice(list_needed(shape), MAX_ASSUMED + 1)
    }
    return None if len(needed) > MAX_ASSUMED else needed | dict(seen)


def _choose_type(config: Mapping[str, Any], seen: Mapping[str, StoredTensor]) -> str | None:
    """Return the type that most of the numbers seen have, else config.json's, as headers name it."""
    counted = Counter[str]()
    for tensor in seen.values():
        counted[tensor.dtype] += tensor.num_numbers
    named = config.get("dtype") or config.get("torch_dtype")
    of_config = [name for name, dtype in STORED_TYPES.items() if dtype == named]
    most = [name for name, _ in counted.most_common() if name in STORED_TYPES]
    other = ["F32"] if seen else []  # what was seen is told of, so the others' type decides nothing
    return next(iter([*most, *of_config, *other]), None)
