"""How files store a family's tensors: several parts in one tensor, or all experts in one."""

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


class Ending(NamedTuple):
    """The end of a tensor's name, behind its module's name."""

    stored: str
    """In files."""
    declared: str
    """The ending that schemes and loaders know instead."""
    is_turned: bool = False
    """Whether inputs come before outputs."""


class Joined(NamedTuple):
    """A module of files that has several declared parts, one below the other."""

    stored: str
    """Its name in files, without `.weight`."""
    parts: tuple[str, ...]
    """Their names, as families have them."""
    has_experts: bool = False
    """Whether its first axis has all experts. Then inputs may come before outputs: its shape says so."""
    is_interleaved: bool = False
    """Whether the parts have its outputs in turn, one each, instead of lying one below the other."""
    endings: tuple[Ending, ...] = ()
    """Its tensors, if their names are not the module's, a dot, and what schemes call them."""

    def list_names(self, layer: int | None, ending: str) -> list[str]:
        """Return the names that the tensor of this declared ending may have in files."""
        module = self.stored.format(layer=layer)
        if self.endings:
            return [module + one.stored for one in self.endings if one.declared == ending]
        return [f"{module}.{ending}", *([module] if ending == "weight" else [])]


_LAYER: Final = "model.layers.{layer}."
QKV: Final = Joined(f"{_LAYER}self_attn.qkv_proj", ("query", "key", "value"))
GATE_UP: Final = Joined(f"{_LAYER}mlp.gate_up_proj", ("gate", "up"))


class Source(NamedTuple):
    """Where a declared tensor lies in files."""

    name: str
    expert: int | None = None
    """Its expert's index on the first axis; None: there is no such axis."""
    is_turned: bool = False
    """Whether the last two axes are to be swapped."""
    axis: int = 0
    """The axis that `begin`, `end` and `step` cut, counted after the swap and without the experts' axis."""
    begin: int = 0
    end: int | None = None
    """None: up to the end."""
    step: int = 1
    """The stride on `axis`: 2 takes every second row or column of the stored tensor."""

    def find_shape(self, stored: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the declared tensor."""
        shape = list(stored if self.expert is None else stored[1:])
        if self.is_turned:
            shape.reverse()
        if self.end is not None:
            shape[self.axis] = len(range(self.begin, self.end, self.step))
        return tuple(shape)

    def cut(self, stored: StoredTensor, name: str) -> StoredTensor:
        """Return the declared tensor of this name, as a header would describe it."""
        place = stored.place if self.name == name else self.name
        return StoredTensor(stored.dtype, self.find_shape(stored.shape), place)


class _Place(NamedTuple):
    """A part's outputs in its larger module."""

    part: str
    begin: int
    end: int
    step: int


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
            for ending, name in _list_tensors(joined, layer, modules, stored):
                if len(sources) + len(module.parts) * module.count > MAX_LOCATED:
                    continue
                found = {
                    f"{names[part].format(layer=layer, expert=source.expert)}.{ending.declared}": source
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


def _list_tensors(
    joined: Joined, layer: int, modules: Mapping[str, Mapping[str, str]], stored: Shapes
) -> Iterator[tuple[Ending, str]]:
    """Yield a layer's tensors of a module with their names in files."""
    module = joined.stored.format(layer=layer)
    if joined.endings:
        named = ((ending, f"{module}{ending.stored}") for ending in joined.endings)
        yield from ((ending, name) for ending, name in named if name in stored)
        return
    for ending, name in modules.get(module, {}).items():
        yield Ending(f".{ending}", ending), name


def _find_module(shape: DecoderShape, kind: LayerShape, joined: Joined) -> Module | None:
    """Return the declared module of these parts; None if such layers have none."""
    found = (one for one in list_layer(shape, kind) if one.parts[0].name == joined.parts[0])
    return next(found, None)


def _split(
    joined: Joined, module: Module, name: str, ending: Ending, shape: Sequence[int]
) -> Iterator[tuple[str, Source]]:
    """Yield each part, of each expert; none if the tensor can't be cut between them."""
    places = list(_list_places(module.parts, is_interleaved=joined.is_interleaved))
    whole: Source | None = Source(name)
    if joined.has_experts:
        whole = _find_first(joined, module, name, ending, shape)
    if whole is None:
        return
    axis = 1 if ending.declared in _BESIDE else 0
    unit = _find_unit(ending.declared, whole.find_shape(shape), axis, places)
    if unit is None:
        return
    for expert in range(module.count if joined.has_experts else 1):
        for place in places:
            source = whole._replace(expert=expert) if joined.has_experts else whole
            if unit and len(places) > 1:
                begin, end = place.begin // unit, -(-place.end // unit)
                source = source._replace(axis=axis, begin=begin, end=end, step=place.step)
            yield place.part, source


def _find_first(
    joined: Joined, module: Module, name: str, ending: Ending, shape: Sequence[int]
) -> Source | None:
    """Return where the first expert lies; None if the tensor has other counts of experts or outputs."""
    assert module.columns is not None, "experts are matrices"
    num_experts, *inner = shape or (0,)
    outputs = sum(part.rows.size for part in module.parts)
    size = [outputs, module.columns.size]
    if num_experts != module.count:
        return None
    if joined.endings:
        at = -1 if ending.is_turned else 0
        return Source(name, 0, is_turned=ending.is_turned) if inner and inner[at] == outputs else None
    return Source(name, 0, is_turned=inner != size) if inner in (size, size[::-1]) else None


def _list_places(parts: Sequence[Part], *, is_interleaved: bool) -> Iterator[_Place]:
    begin, step = 0, len(parts) if is_interleaved else 1
    for part in parts:
        yield _Place(part.name, begin, begin + (part.rows.size - 1) * step + 1, step)
        begin += 1 if is_interleaved else part.rows.size


def _find_unit(ending: str, shape: Sequence[int], axis: int, places: Sequence[_Place]) -> int | None:
    """Return the outputs of each row, or column; 0 if all parts share the tensor, None if two share a row."""
    if ending in _SHARED or len(shape) <= axis or shape[axis] == 1:
        return 0
    total = places[-1].end
    unit = -(-total // max(1, shape[axis]))
    if -(-total // unit) != shape[axis]:
        return None
    return None if any(place.begin % unit for place in places) else unit
