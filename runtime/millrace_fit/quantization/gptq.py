"""Matrices of 4 bits as AutoGPTQ and GPTQModel write them."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from millrace_fit.errors import ArchitectureError
from millrace_fit.fields import Fields
from millrace_fit.quantization.groups import read_group
from millrace_fit.quantization.rules import (
    HEADS,
    ROUTERS,
    Quantization,
    Rule,
    Targets,
    check_count,
    compile_pattern,
    quantize_all_but,
)
from millrace_fit.quantization.scheme import Kind, Packing, Scheme

_PACKINGS: Final = {"gptq": Packing.GPTQ, "gptq_v2": Packing.GPTQ_V2}
_ADVICE: Final = (
    "only GPTQ in 4 bits is read: take such a checkpoint, or the unquantised one with weights Int8"
)
_OVERRIDES: Final = ("bits", "group_size", "desc_act", "sym")


def read_gptq(fields: Fields) -> Quantization:
    """Return what `quant_method: gptq` says. Raises ArchitectureError, which names the field."""
    fields.refuse("is_marlin_format", unless=(None, False), advice="export it in GPTQ's own format")
    fields.refuse("pack_dtype", unless=(None, "int32"), advice="export it with int32")
    scheme = _read_scheme(fields)
    # A head has its scheme only if config.json says so, or its tensors, whatever other rules say.
    heads = () if fields.flag("lm_head") else (HEADS,)
    first = (*(Rule(targets, None, is_assumed=True) for targets in heads), *_read_dynamic(fields))
    blocks = _read_blocks(fields)
    if blocks is None:
        return quantize_all_but("gptq", scheme, ROUTERS, first=first)
    listed = (Rule(ROUTERS, None, is_assumed=True), Rule(HEADS, scheme), Rule(blocks, scheme))
    return Quantization("gptq", (*first, *listed))


def _read_scheme(fields: Fields) -> Scheme:
    fields.refuse("bits", unless=(4,), advice=_ADVICE)
    name = "checkpoint_format" if fields.has("checkpoint_format") else "format"
    packing = _PACKINGS.get(str(fields.raw.get(name) or "gptq").lower())
    if packing is None:
        raise ArchitectureError(
            f"config.json has {name} {str(fields.raw[name])[:40]!r}; replicas read gptq and gptq_v2: take "
            "such a checkpoint, or the unquantised one"
        )
    return Scheme(
        Kind.INT4,
        packing,
        group=read_group(fields, "group_size", default=128),
        has_zeros=not fields.flag("sym", default=True),
        is_ordered=fields.flag("desc_act"),
    )


def _read_dynamic(fields: Fields) -> Iterator[Rule]:
    """Yield the rules of `dynamic`: `-:` leaves modules as they are, `+:` or nothing changes fields."""
    rules = fields.raw.get("dynamic") or {}
    if not isinstance(rules, Mapping):
        raise ArchitectureError(f"config.json has dynamic {str(rules)[:80]!r}; it must be an object")
    check_count(rules)
    for name, changes in rules.items():
        targets = Targets(patterns=(compile_pattern(name.removeprefix("-:").removeprefix("+:")),))
        yield Rule(targets, None if name.startswith("-:") else _read_changed(fields, name, changes))


def _read_changed(fields: Fields, name: str, changes: Any) -> Scheme:
    if not isinstance(changes, Mapping):
        raise ArchitectureError(f"config.json has {name[:80]!r} in dynamic without an object of fields")
    changed = {field: changes[field] for field in _OVERRIDES if field in changes}
    return _read_scheme(Fields({**fields.raw, **changed}))


def _read_blocks(fields: Fields) -> Targets | None:
    """Return the modules of a layer that are quantised; None: all."""
    lists = fields.raw.get("modules_in_block_to_quantize")
    if not lists:
        return None
    nested = (
        [one if isinstance(one, list) else [one] for one in lists] if isinstance(lists, list) else [[lists]]
    )
    names = [name for one in nested for name in one]
    if not all(isinstance(name, str) and name for name in names):
        raise ArchitectureError("config.json has modules_in_block_to_quantize, which must be lists of names")
    return Targets(runs=frozenset(names))
