"""How a checkpoint's modules are quantised, counted by kind of layer: all that sizes need, in a few bytes."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from millrace_fit.declaration.family import Names, name_part
from millrace_fit.errors import ArchitectureError
from millrace_fit.families.registry import Declared
from millrace_fit.modules import Module, Part, Role, list_layer, list_outer
from millrace_fit.quantization.groups import can_cut
from millrace_fit.quantization.scheme import Kind, Packing, Scheme
from millrace_fit.shape import DecoderShape
from millrace_fit.shape_json import read_count
from millrace_fit.shard import CANNOT_SHARE, Shard

_NAME: Final = "scale"
_NO_NAME: Final = Scheme(Kind.FP8, Packing.PLAIN).scale
"""The field of a scheme that says nothing of sizes, and what it has instead."""


@dataclass(frozen=True, slots=True)
class ModuleSchemes:
    """Modules of one role, in layers of one kind, that are quantised alike."""

    kind: int | None
    """The number of the layers' kind in the shape; None: outside of layers."""
    role: Role
    schemes: tuple[Scheme | None, ...]
    """Of each part; None: not quantised."""
    count: int
    """Such layers."""


def find_schemes(declared: Declared) -> tuple[ModuleSchemes, ...]:
    """Return how the modules are quantised that stay so in memory, the most frequent first.

    Raises ArchitectureError for a mixture that no replica reads.
    """
    if declared.quantization.is_widened:
        return ()
    found = Counter[tuple[int | None, Role, tuple[Scheme | None, ...]]]()
    for layer, kind, module in _list_matrices(declared.shape):
        schemes = _find_schemes_of(declared, module, layer)
        if any(scheme is not None for scheme in schemes):
            found[kind, module.role, schemes] += 1
    return tuple(ModuleSchemes(*key, count) for key, count in found.most_common())


def _list_matrices(shape: DecoderShape) -> Iterator[tuple[int | None, int | None, Module]]:
    """Yield each linear module with the numbers of its layer and of the layer's kind."""
    for module in list_outer(shape):
        if module.is_linear:
            yield None, None, module
    # A router is widened by the loader.
    modules = [
        [one for one in list_layer(shape, kind) if one.is_linear and one.role is not Role.ROUTER]
        for kind in shape.kinds
    ]
    for layer, kind in enumerate(shape.kind_numbers):
        yield from ((layer, kind, module) for module in modules[kind])


def _find_schemes_of(declared: Declared, module: Module, layer: int | None) -> tuple[Scheme | None, ...]:
    names, first = declared.family.names, _find_schemes_of_one(declared, module, layer, 0)
    for expert in range(1, module.count):
        if _find_schemes_of_one(declared, module, layer, expert) != first:
            name = name_part(names, module.parts[0], layer, expert)
            raise ArchitectureError(
                f"config.json quantises {name} and other experts of its layer in different ways, which no "
                "replica reads: take another checkpoint, or the unquantised one"
            )
    _check_mixture(module, first, names, layer)
    return first


def _find_schemes_of_one(
    declared: Declared, module: Module, layer: int | None, expert: int
) -> tuple[Scheme | None, ...]:
    names = (name_part(declared.family.names, part, layer, expert) for part in module.parts)
    schemes = (declared.quantization.find_scheme(name) for name in names)
    return tuple(
        None if one is None or one.is_widened else replace(one, scale=_NO_NAME, are_inputs_rounded=False)
        for one in schemes
    )


def _check_mixture(module: Module, schemes: Sequence[Scheme | None], names: Names, layer: int | None) -> None:
    _check_order(module, schemes, names, layer)
    if module.is_gated and len(set(schemes)) > 1:
        gate, up = (name_part(names, part, layer, 0) for part in module.parts)
        raise ArchitectureError(
            f"config.json quantises {gate} and {up} in different ways, which no replica reads: take another "
            "checkpoint, or the unquantised one"
        )


def _check_order(module: Module, schemes: Sequence[Scheme | None], names: Names, layer: int | None) -> None:
    """Refuse experts whose groups take inputs in any order: each may have an order of its own."""
    if module.count > 1 and any(one and one.is_ordered and one.group for one in schemes):
        raise ArchitectureError(
            f"the groups of {name_part(names, module.parts[0], layer, 0)} take inputs in any order "
            "(desc_act, actorder), and no replica reads experts so: take one without an order, or AWQ"
        )


def check_shares(shape: DecoderShape, quantized: Sequence[ModuleSchemes], count: int) -> None:
    """Raise ArchitectureError if so many workers can't share the quantised matrices in stored form."""
    scheme = _find_uncut(shape, quantized, count)
    if scheme is None:
        return
    counts = [one for one in range(1, count) if _shares(shape, quantized, one)]
    raise ArchitectureError(
        f"weights in {scheme} {CANNOT_SHARE} {count} workers: take {' or '.join(map(str, counts)) or 1}"
    )


def _shares(shape: DecoderShape, quantized: Sequence[ModuleSchemes], count: int) -> bool:
    try:
        return _find_uncut(shape, quantized, count) is None
    except ArchitectureError:  # for another reason
        return False


def _find_uncut(shape: DecoderShape, quantized: Sequence[ModuleSchemes], count: int) -> Scheme | None:
    """Return a scheme of which some worker can't have its part; None if all can."""
    shards = [Shard(index, count) for index in range(count)]
    for modules in quantized:
        module = _find_module(shape, modules.kind, modules.role)
        for part, scheme in zip(module.parts, modules.schemes, strict=True):
            if scheme is not None and not all(_can_cut(scheme, module, part, shard) for shard in shards):
                return scheme
    return None


def _can_cut(scheme: Scheme, module: Module, part: Part, shard: Shard) -> bool:
    assert module.columns is not None, "a vector is not quantised"
    return can_cut(scheme, part.rows.cut(shard), module.columns.cut(shard))


def _find_module(shape: DecoderShape, kind: int | None, role: Role) -> Module:
    """Return a quantised module. Raises KeyError if there is none."""
    listed = list_outer(shape) if kind is None else list_layer(shape, shape.kinds[kind])
    return {one.role: one for one in listed if one.is_linear}[role]


def write_schemes(quantized: Sequence[ModuleSchemes], max_bytes: int) -> dict[str, Any]:
    """Return schemes and modules for `json.dumps`: roles that are alike in one row.

    Rows that do not fit are left out: their matrices count as unquantised, which takes more memory.
    """
    rows: dict[tuple[int | None, tuple[Scheme | None, ...] | Scheme | None, int], list[str]] = {}
    for one in quantized:
        alike = one.schemes[0] if len(set(one.schemes)) == 1 else one.schemes
        rows.setdefault((one.kind, alike, one.count), []).append(one.role.name)
    schemes: list[Scheme] = []

    def number(scheme: Scheme | None) -> int | None:
        if scheme is None:
            return None
        if scheme not in schemes:
            schemes.append(scheme)
        return schemes.index(scheme)

    written: dict[str, Any] = {"schemes": [], "modules": []}
    for (kind, alike, count), roles in rows.items():
        numbers = [number(one) for one in alike] if isinstance(alike, tuple) else number(alike)
        more = {
            "schemes": [_write_scheme(one) for one in schemes],
            "modules": [*written["modules"], [kind, " ".join(roles), numbers, count]],
        }
        if len(json.dumps(more, separators=(",", ":"))) > max_bytes:
            break
        written = more
    return written


def _write_scheme(scheme: Scheme) -> dict[str, Any]:
    values, plain = asdict(scheme), asdict(Scheme(scheme.kind, scheme.packing))
    changed = {name: value for name, value in values.items() if value != plain[name] and name != _NAME}
    return {"kind": scheme.kind.value, "packing": scheme.packing.value} | changed


def read_schemes(values: Any, shape: DecoderShape) -> tuple[ModuleSchemes, ...]:
    """Return what `write_schemes` wrote, if anything. Raises ValueError, KeyError or TypeError."""
    if values is None:
        return ()
    schemes = [_read_scheme(one) for one in values["schemes"]]
    rows = (_read_row(row, schemes, shape) for row in values["modules"])
    return tuple(one for row in rows for one in row)


def _read_scheme(values: Mapping[str, Any]) -> Scheme:
    names = (field.name for field in fields(Scheme) if field.name != _NAME and field.compare)
    known = {name: values[name] for name in names if name in values}
    kind, packing = Kind(known.pop("kind")), Packing(known.pop("packing"))
    for name in ("rows", "group"):
        if known.get(name) is not None:
            read_count(known[name], least=1)
    if not all(isinstance(known.get(name, False), bool) for name in ("has_zeros", "is_ordered")):
        raise TypeError(known)
    return Scheme(kind, packing, **known)


def _read_row(row: Any, schemes: Sequence[Scheme], shape: DecoderShape) -> Iterator[ModuleSchemes]:
    kind, roles, numbers, count = row
    if kind is not None and read_count(kind, least=0) >= len(shape.kinds):
        raise ValueError(kind)
    for role in roles.split():
        module = _find_module(shape, kind, Role[role])
        all_of_them = numbers if isinstance(numbers, list) else [numbers] * len(module.parts)
        if len(all_of_them) != len(module.parts):
            raise ValueError(numbers)
        read = tuple(None if one is None else schemes[read_count(one, least=0)] for one in all_of_them)
        yield ModuleSchemes(kind, module.role, read, read_count(count, least=1))
