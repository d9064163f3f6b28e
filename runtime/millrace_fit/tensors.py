"""The tensors that a checkpoint must and may have, by its family and its shape.

If not all files were seen, the tensors are those that config.json describes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from millrace_fit.dtypes import STORED_TYPES
from millrace_fit.errors import ArchitectureError
from millrace_fit.families.family import Family, Names, name_part
from millrace_fit.families.registry import declare
from millrace_fit.headers import StoredTensor
from millrace_fit.modules import Module, list_modules
from millrace_fit.shape import DecoderShape

Shapes = Iterator[tuple[str, tuple[int, ...]]]
"""Names with shapes."""


def find_fault(family: Family, shape: DecoderShape, stored: Mapping[str, StoredTensor]) -> str | None:
    """Return why a replica would refuse these tensors, in a sentence; None if it reads all of them."""
    needed = set[str]()
    for name, dims in list_needed(family, shape):
        if fault := _find_fault_of_one(name, dims, stored.get(name)):
            return fault
        needed.add(name)
    left = stored.keys() - needed - set(list_unread(family, shape))
    if shape.is_tied:  # a copy of the embedding, as the loader makes sure of
        left -= {f"{family.names['head']}.weight"}
    left = {name for name in left if not name.startswith(family.beside)}
    if left:
        return (
            f"config.json describes a model without the tensor {min(left)}, one of {len(left)} that would be "
            "left out: use the config.json that came with the weights"
        )
    return None


def _find_fault_of_one(name: str, shape: tuple[int, ...], found: StoredTensor | None) -> str | None:
    if found is None:
        return (
            f"the safetensors files lack the tensor {name}: the model is incomplete, or config.json is of "
            "another one"
        )
    if found.shape != shape:
        return (
            f"the tensor {name} has the shape {list(found.shape)} and config.json asks for {list(shape)}: "
            "use the config.json that came with the weights"
        )
    if found.dtype not in STORED_TYPES:
        return (
            f"the tensor {name} is stored as {found.dtype}, which means nothing without its scales: "
            "quantised checkpoints are not supported yet, so serve the unquantised one"
        )
    return None


def list_needed(family: Family, shape: DecoderShape) -> Shapes:
    """Yield the tensors that a checkpoint must have, in the order of a model's layers."""
    for layer, module in list_modules(shape):
        for expert in range(module.count):
            yield from _list_stored(module, family.names, layer, expert)


def _list_stored(module: Module, names: Names, layer: int | None, expert: int) -> Shapes:
    columns = () if module.columns is None else (module.columns.size,)
    for part in module.parts:
        name = name_part(names, part, layer, expert)
        yield f"{name}.weight", (part.rows.size, *columns)
        if module.has_bias:
            yield f"{name}.bias", (part.rows.size,)


def list_unread(family: Family, shape: DecoderShape) -> Iterator[str]:
    """Yield the tensors that a replica skips: old checkpoints' rotary frequencies."""
    for name in family.unread:
        for layer in range(shape.num_layers) if "{layer}" in name else (None,):
            yield name.format(layer=layer)


MAX_ASSUMED: Final = 100_000
"""config.json may have counts of layers and experts that fit into no memory."""


def assume_tensors(
    config: Mapping[str, Any], seen: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor] | None:
    """Return the tensors that were seen, and the others that the model must have.

    For an unsupported model it returns no others. None if the type of the others is unknown.
    """
    try:
        family, shape, _ = declare(config)
    except ArchitectureError:
        return dict(seen)
    stored_type = _choose_type(config, seen)
    if stored_type is None:
        return None
    listed = islice(list_needed(family, shape), MAX_ASSUMED + 1)
    needed = {name: StoredTensor(stored_type, dims) for name, dims in listed}
    return None if len(needed) > MAX_ASSUMED else needed | dict(seen)


def _choose_type(config: Mapping[str, Any], seen: Mapping[str, StoredTensor]) -> str | None:
    """Return the type of most of the numbers that were seen, else config.json's, by its name in headers."""
    counted = Counter[str]()
    for tensor in seen.values():
        counted[tensor.dtype] += tensor.num_numbers
    named = config.get("dtype") or config.get("torch_dtype")
    of_config = [name for name, dtype in STORED_TYPES.items() if dtype == named]
    most = [name for name, _ in counted.most_common() if name in STORED_TYPES]
    other = ["F32"] if seen else []  # the tensors that were seen have a fault, so the type does not matter
    return next(iter([*most, *of_config, *other]), None)
