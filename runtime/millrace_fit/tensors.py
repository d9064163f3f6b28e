"""The tensors that a checkpoint must and may have, by its family, its shape and its quantisation.

If not all files were seen, the tensors are those that config.json describes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from math import prod
from typing import Any, Final, NamedTuple

from millrace_fit.declaration.family import Family, Names, name_part
from millrace_fit.errors import ArchitectureError
from millrace_fit.families.registry import Declared, declare, name_tensors
from millrace_fit.files.dtypes import STORED_TYPES
from millrace_fit.files.headers import StoredTensor
from millrace_fit.files.needed import MODELOPT
from millrace_fit.modules import Module, list_modules
from millrace_fit.quantization.groups import find_fault_of_size
from millrace_fit.quantization.scheme import Scheme, StoredPart
from millrace_fit.shape import DecoderShape


class Needed(NamedTuple):
    """A tensor that a checkpoint must have, or may have."""

    matrix: str
    """The name of its module in files."""
    part: StoredPart
    scheme: Scheme | None = None
    """How its module is quantised; None: not at all."""
    num_weights: int = 0
    """The weights that it holds, in whatever form; 0 for scales and the like."""
    num_inputs: int = 0
    """The inputs of a quantised matrix, in the tensor that has its weights."""
    names_stored: tuple[str, ...] = ()
    """The names that the larger tensor may have in files of which it may be a part."""

    @property
    def name(self) -> str:
        """Its name in files."""
        return f"{self.matrix}.{self.part.ending}"


def find_fault(declared: Declared, stored: Mapping[str, StoredTensor]) -> str | None:
    """Return why a replica would refuse these tensors, in a sentence; None if it reads all of them."""
    family, shape, _ = declared
    known = set[str]()
    for needed in list_needed(declared):
        if fault := _find_fault_of_one(declared, needed, stored):
            return fault
        known.add(needed.name)
    left = stored.keys() - known - set(list_unread(family, shape))
    if shape.is_tied:  # a copy of the embedding, as the loader makes sure of
        left -= {f"{family.names['head']}.weight"}
    left = {name for name in left if not name.startswith(family.beside)}
    if left:
        first = _name(min(left), stored)
        return (
            f"config.json describes a model without the tensor {first}, one of {len(left)} that would be "
            "left out: use the config.json that came with the weights"
        )
    return None


def _find_fault_of_one(declared: Declared, needed: Needed, stored: Mapping[str, StoredTensor]) -> str | None:
    name, part, found = needed.name, needed.part, stored.get(needed.name)
    if found is None:
        return _explain_missing(declared, needed, stored) if part.is_required else None
    if found.dtype not in part.types:
        return _explain_type(declared, needed, found.dtype)
    if found.shape not in part.shapes:
        return (
            f"the tensor {_name(name, stored)} has the shape {list(found.shape)} and config.json asks for "
            f"{list(part.shapes[0])}: use the config.json that came with the weights"
        )
    if needed.scheme is not None and needed.num_weights:
        return _find_fault_of_size(needed, needed.scheme)
    return None


def _find_fault_of_size(needed: Needed, scheme: Scheme) -> str | None:
    fault = find_fault_of_size(scheme, needed.num_weights // needed.num_inputs, needed.num_inputs)
    if fault is None:
        return None
    return f"the tensor {needed.name} has {fault}, so no replica reads it: take another checkpoint"


def _name(name: str, stored: Mapping[str, StoredTensor]) -> str:
    """Return a tensor's name, and the one in its file if that is another."""
    place = stored[name].place
    return name if place is None else f"{name} ({place} in its file)"


_QUANTIZED_ENDINGS: Final = ("qweight", "weight_packed", "weight_blocks")
"""Of tensors in whose place an unquantised matrix has `weight`."""


def _explain_missing(declared: Declared, needed: Needed, stored: Mapping[str, StoredTensor]) -> str:
    matrix, ending = needed.matrix, needed.part.ending
    if needed.scheme is None:
        words = next((one for one in _QUANTIZED_ENDINGS if f"{matrix}.{one}" in stored), None)
        if words is not None and ending == "weight":
            return _explain_quantized(declared, _name(f"{matrix}.{words}", stored), f"stored as {words}")
    elif needed.num_weights and f"{matrix}.weight" in stored:
        name = f"{matrix}.weight"
        return _explain_plain(declared, _name(name, stored), stored[name].dtype, needed.scheme)
    joined = next((one for one in needed.names_stored if one in stored), None)
    if joined is not None:
        return (
            f"the tensor {joined} has the shape {list(stored[joined].shape)}, and config.json asks for "
            f"another one, of which {needed.name} is a part: use the config.json that came with the weights"
        )
    cause = _explain_names(declared, needed, stored)
    return f"the safetensors files lack the tensor {needed.name}: {cause}"


def _explain_names(declared: Declared, needed: Needed, stored: Mapping[str, StoredTensor]) -> str:
    """Return the likely cause of a missing tensor: the model has no head, or its files have other names."""
    if needed.matrix == declared.family.names["head"]:
        return (
            "this is an embedding or classifying model, which is not served, or the model is incomplete, or "
            "its config.json should say tie_word_embeddings"
        )
    outer = {declared.family.names[part] for part in ("embedding", "norm", "head")}  # some have them alike
    expected = islice(list_needed(declared), MAX_ASSUMED)
    others = [name for name in stored if name.rpartition(".")[0] not in outer]
    if not others or any(one.name in stored for one in expected if one.matrix not in outer):
        return "the model is incomplete, or config.json is of another one"
    return (
        f"they name their tensors in another way ({min(others)}): take the model's copy in Hugging Face's "
        "layout, or convert it with transformers' save_pretrained"
    )


def _explain_type(declared: Declared, needed: Needed, dtype: str) -> str:
    if needed.scheme is None:
        return _explain_quantized(declared, needed.name, f"stored as {dtype}")
    if needed.num_weights and dtype in STORED_TYPES:
        return _explain_plain(declared, needed.name, dtype, needed.scheme)
    return (
        f"the tensor {needed.name} is stored as {dtype}, and replicas read {' or '.join(needed.part.types)} "
        f"there ({declared.quantization.method}): take another checkpoint, or the unquantised one"
    )


def _explain_plain(declared: Declared, name: str, dtype: str, scheme: Scheme) -> str:
    method = declared.quantization.method
    return (
        f"the tensor {name} is stored as {dtype}, and config.json says {scheme} ({method}): use the "
        "config.json that came with the weights"
    )


def _explain_quantized(declared: Declared, name: str, how: str) -> str:
    if declared.quantization.is_quantized:
        return (
            f"the tensor {name} is {how}, and config.json leaves it unquantised "
            f"({declared.quantization.method}): use the config.json that came with the weights"
        )
    return (
        f"the tensor {name} is {how}, which means nothing without a quantization_config in config.json: use "
        f"the config.json that came with the weights, and the {MODELOPT} if one is beside it"
    )


def list_needed(declared: Declared) -> Iterator[Needed]:
    """Yield the tensors that a checkpoint must or may have, in the order of a model's layers."""
    for layer, module in list_modules(declared.shape):
        for expert in range(module.count):
            yield from _list_stored(declared, module, layer, expert)


def _list_stored(declared: Declared, module: Module, layer: int | None, expert: int) -> Iterator[Needed]:
    names: Names = declared.family.names
    for part in module.parts:
        joined = next((one for one in declared.family.layout if part.name in one.parts), None)
        for needed in _list_of_part(declared, module, part.rows.size, name_part(names, part, layer, expert)):
            stored = () if joined is None else joined.list_names(layer, needed.part.ending)
            yield needed._replace(names_stored=tuple(stored))


def _list_of_part(declared: Declared, module: Module, rows: int, name: str) -> Iterator[Needed]:
    scheme = declared.quantization.find_scheme(name) if module.is_linear else None
    if scheme is None:
        yield _need_plain(name, "weight", (rows,) if module.columns is None else (rows, module.columns.size))
    elif module.columns is not None:
        yield from _list_quantized(name, scheme, rows, module.columns.size)
    if module.has_bias:
        yield _need_plain(name, "bias", (rows,))


def _need_plain(name: str, ending: str, shape: tuple[int, ...]) -> Needed:
    return Needed(name, StoredPart(ending, (shape,), tuple(STORED_TYPES)), num_weights=prod(shape))


def _list_quantized(name: str, scheme: Scheme, outputs: int, inputs: int) -> Iterator[Needed]:
    """Yield a matrix's tensors. The first one has its weights."""
    first, *others = scheme.list_parts(outputs, inputs)
    yield Needed(name, first, scheme, outputs * inputs, inputs)
    yield from (Needed(name, part, scheme) for part in others)


def list_unread(family: Family, shape: DecoderShape) -> Iterator[str]:
    """Yield the tensors that a replica skips: old rotary frequencies, and fixed scales of the KV cache."""
    for name in family.unread:
        for layer in range(shape.num_layers) if "{layer}" in name else (None,):
            yield name.format(layer=layer)
    for layer in range(shape.num_layers):
        yield from _list_kv_scales(family.names["query"].format(layer=layer))


_JOINED: Final = ("qkv_proj", "qkqkv_proj")
"""Names that some writers give to the three projections."""


def _list_kv_scales(query: str) -> Iterator[str]:
    """Yield the names of a layer's scales of queries, keys and values, wherever a writer has put them."""
    attention, _, projection = query.rpartition(".")
    yield f"{attention}.kv_scale"
    for kind in "qkv":
        yield f"{attention}.{projection.replace('q', kind, 1)}.output_scale"
        for joined in _JOINED:
            yield f"{attention}.{joined}.{kind}_scale"
        for place in (attention, f"{attention}.attn", f"{attention}.{projection.replace('q', kind, 1)}"):
            yield f"{place}.{kind}_scale"
            yield f"{place}.{kind}_zero_point"


MAX_ASSUMED: Final = 200_000
"""config.json may have counts of layers and experts that fit into no memory. Qwen3-235B-A22B in AWQ has 110
thousand tensors."""


def assume_tensors(
    config: Mapping[str, Any], seen: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor] | None:
    """Return the tensors that were seen, and the others that the model must have, by the family's names.

    For an unsupported model it returns no others. None if the type of the others is unknown.
    """
    seen = name_tensors(config, seen)
    try:
        declared = declare(config).fit_to(seen)
    except ArchitectureError:
        return dict(seen)
    stored_type = _choose_type(config, seen)
    if stored_type is None:
        return None
    required = (one for one in list_needed(declared) if one.part.is_required)
    needed = {one.name: _assume(one.part, stored_type) for one in islice(required, MAX_ASSUMED + 1)}
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


def _assume(part: StoredPart, stored_type: str) -> StoredTensor:
    """Return a tensor by the types and shapes that it may have."""
    return StoredTensor(stored_type if stored_type in part.types else part.types[0], part.shapes[0])
