"""How files store what a family declares: several parts in one tensor, or all experts in one."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from millrace_fit.files.headers import StoredTensor
from millrace_fit.modules import Module, Part, list_layer
from millrace_fit.shape import DecoderShape, LayerShape

Shapes = Mapping[str, Sequence[int]]
"""The tensors of files by their names."""
MAX_LOCATED: Final = 200_000
"""Tensors of all layers and experts. config.json may have counts of experts that fit into no memory."""
_BESIDE: Final = ("qweight", "qzeros", "scales")
"""Endings of tensors whose second axis has the outputs, as GPTQ and AWQ have them."""
_SHARED: Final = ("g_idx", "weight_g_idx", "weight_shape")
"""Endings of tensors that say nothing of outputs."""


class Joined(NamedTuple):
    """A module of files that has several declared parts, one below the other."""

    stored: str
    """Its name in files, without `.weight`."""
    parts: tuple[str, ...]
    """Their names, as families have them."""
    has_experts: bool = False
    """Whether its first axis has all experts. Then inputs may come before outputs: its shape says so."""


_LAYER: Final = "model.layers.{layer}."
QKV: Final = Joined(f"{_LAYER}self_attn.qkv_proj", ("query", "key", "value"))
GATE_UP: Final = Joined(f"{_LAYER}mlp.gate_up_proj", ("gate", "up"))


class Source(NamedTuple):
    """Where a declared tensor lies in files."""

    name: str
    expert: int | None = None
    """Of the first axis; None: there is no such axis."""
    is_turned: bool = False
    """Whether the last two axes are to be swapped."""
    axis: int = 0
    """Of those that are left, the one of which it is a part."""
    begin: int = 0
    end: int | None = None
    """None: up to the end."""

    def find_shape(self, stored: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the declared tensor."""
        shape = list(stored if self.expert is None else stored[1:])
        if self.is_turned:
            shape.reverse()
        if self.end is not None:
            shape[self.axis] = self.end - self.begin
        return tuple(shape)

    def cut(self, stored: StoredTensor) -> StoredTensor:
        """Return what a header would say of the declared tensor."""
        return stored._replace(shape=self.find_shape(stored.shape))


class _Place(NamedTuple):
    """A part's outputs in its larger module."""

    part: str
    begin: int
    end: int


def locate(
    layout: Sequence[Joined], names: Mapping[str, str], shape: DecoderShape, stored: Shapes
) -> dict[str, Source]:
    """Return where each tensor lies, by the name that the family declares.

    If a part is stored alone, too, the larger tensor stays as well: nobody reads it, so the model is refused.
    """
    sources, modules = {name: Source(name) for name in stored}, _group(stored)
    for joined in layout:
        declared = {kind: _find_module(shape, kind, joined) for kind in shape.kinds}
        for layer, kind in enumerate(shape.layers):
            module = declared[kind]
            if module is None:
                continue
            for ending, name in modules.get(joined.stored.format(layer=layer), {}).items():
                if len(sources) + len(module.parts) * module.count > MAX_LOCATED:
                    continue
                found = {
                    f"{names[part].format(layer=layer, expert=source.expert)}.{ending}": source
                    for part, source in _split(joined, module, name, ending, stored[name])
                }
                if found and found.keys().isdisjoint(stored):
                    del sources[name]
                for declared_name, source in found.items():
                    sources.setdefault(declared_name, source)
    return sources


def _group(stored: Shapes) -> dict[str, dict[str, str]]:
    """Return the tensors' names by their modules and endings. All experts' tensor may have no ending."""
    modules: dict[str, dict[str, str]] = {}
    for name in stored:
        module, _, ending = name.rpartition(".")
        modules.setdefault(module, {})[ending] = name
        modules.setdefault(name, {})["weight"] = name
    return modules


def _find_module(shape: DecoderShape, kind: LayerShape, joined: Joined) -> Module | None:
    """Return the declared module of these parts; None if such layers have none."""
    found = (one for one in list_layer(shape, kind) if one.parts[0].name == joined.parts[0])
    return next(found, None)


def _split(
    joined: Joined, module: Module, name: str, ending: str, shape: Sequence[int]
) -> Iterator[tuple[str, Source]]:
    """Yield each part, of each expert; none if the tensor can't be cut between them."""
    places = list(_list_places(module.parts))
    whole, experts = Source(name), range(1)
    if joined.has_experts:
        assert module.columns is not None, "experts are matrices"
        size, experts = (places[-1].end, module.columns.size), range(module.count)
        if tuple(shape) not in {(module.count, *size), (module.count, *reversed(size))}:
            return
        whole = Source(name, 0, is_turned=tuple(shape[1:]) != size)
    axis = 1 if ending in _BESIDE else 0
    unit = _find_unit(ending, whole.find_shape(shape), axis, places)
    if unit is None:
        return
    for expert in experts:
        for place in places:
            source = whole._replace(expert=expert) if joined.has_experts else whole
            if unit and len(places) > 1:
                source = source._replace(axis=axis, begin=place.begin // unit, end=-(-place.end // unit))
            yield place.part, source


def _list_places(parts: Sequence[Part]) -> Iterator[_Place]:
    begin = 0
    for part in parts:
        yield _Place(part.name, begin, begin + part.rows.size)
        begin += part.rows.size


def _find_unit(ending: str, shape: Sequence[int], axis: int, places: Sequence[_Place]) -> int | None:
    """Return the outputs of each row, or column; 0 if all parts share the tensor, None if two share a row."""
    if ending in _SHARED or len(shape) <= axis or shape[axis] == 1:
        return 0
    total = places[-1].end
    unit = -(-total // max(1, shape[axis]))
    if -(-total // unit) != shape[axis]:
        return None
    return None if any(place.begin % unit for place in places) else unit
