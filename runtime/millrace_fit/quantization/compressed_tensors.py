"""Matrices as compressed-tensors and LLM Compressor write them: FP8, INT8, and INT4 in words."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from millrace_fit.errors import ArchitectureError
from millrace_fit.fields import Fields
from millrace_fit.quantization.fp8 import read_block
from millrace_fit.quantization.groups import check_group
from millrace_fit.quantization.rules import Quantization, Rule, Targets, read_exact, read_names
from millrace_fit.quantization.scheme import Kind, Packing, Scheme

_LINEAR: Final = "Linear"
"""The class of all matrices but embeddings."""
_PACKED: Final = "pack-quantized"
_MIXED: Final = "mixed-precision"
_DENSE: Final = ("dense", "fakequant")
_KINDS: Final[Mapping[tuple[str, str, int], Kind]] = MappingProxyType(
    {
        ("float-quantized", "float", 8): Kind.FP8,
        ("naive-quantized", "float", 8): Kind.FP8,
        ("int-quantized", "int", 8): Kind.INT8,
        ("naive-quantized", "int", 8): Kind.INT8,
        (_PACKED, "int", 8): Kind.INT8,
        (_PACKED, "int", 4): Kind.INT4,
    }
)
"""By format, type and num_bits."""
_STORED_TRANSFORMS: Final = ("weight_input", "weight_output")
"""Places of rotations that are part of the stored weights; others would run beside each product."""
_FORMATS: Final = {Kind.FP8: "float-quantized", Kind.INT8: "int-quantized", Kind.INT4: _PACKED}
"""The format of a group that names none, by its numbers."""


def read_compressed_tensors(fields: Fields) -> Quantization:
    """Return what `quant_method: compressed-tensors` says. Raises ArchitectureError."""
    _refuse_sparse(fields.raw)
    inner = fields.raw.get("quantization_config")
    raw = inner if isinstance(inner, Mapping) else fields.raw
    groups = raw.get("config_groups") or {}
    if not isinstance(groups, Mapping):
        raise ArchitectureError(f"config.json has config_groups {str(groups)[:80]!r}; it must be an object")
    if raw.get("format") in _DENSE:  # rounded, and stored in the model's own type
        return Quantization("compressed-tensors", ())
    ignored = Rule(_read_targets(read_names(raw, "ignore")), None)
    _refuse_transforms(raw.get("transform_config"))
    rules = [rule for name, group in groups.items() for rule in _read_group(raw, name, group)]
    rules.sort(key=_rank)
    return Quantization("compressed-tensors", (ignored, *rules) if rules else ())


def _refuse_sparse(raw: Mapping[str, Any]) -> None:
    sparsity = raw.get("sparsity_config") or {}
    kind = sparsity.get("format") if isinstance(sparsity, Mapping) else sparsity
    if kind not in ("dense", None):
        raise ArchitectureError(
            f"config.json has sparsity_config {str(kind)[:40]!r}; sparse checkpoints are not read: "
            "take a dense one"
        )


def _refuse_transforms(config: Any) -> None:
    """Refuse rotations of inputs, outputs and keys, as QuIP and SpinQuant have them."""
    groups = config.get("config_groups") if isinstance(config, Mapping) else config
    schemes = list(groups.values()) if isinstance(groups, Mapping) else [groups] if groups else []
    for scheme in schemes:
        applied = scheme.get("apply") if isinstance(scheme, Mapping) else None
        for one in applied if isinstance(applied, list) and applied else [None]:
            place = one.get("location") if isinstance(one, Mapping) else None
            if place not in _STORED_TRANSFORMS:
                raise ArchitectureError(
                    f"config.json has a transform_config that rotates {str(place)[:40]!r}; only rotations "
                    "within the weights are read: take a checkpoint without them"
                )


def _read_targets(names: list[str]) -> Targets | None:
    """Return the modules of a list; None: every linear module."""
    return None if _LINEAR in names else read_exact(names)


def _read_group(raw: Mapping[str, Any], name: str, group: Any) -> Iterator[Rule]:
    if not isinstance(group, Mapping):
        raise ArchitectureError(f"config.json has {name[:40]!r} in config_groups; it must be an object")
    weights = group.get("weights")
    if weights is None:  # of activations alone
        return
    if not isinstance(weights, Mapping):
        raise ArchitectureError(f"config.json has weights {str(weights)[:80]!r} in config_groups")
    names = read_names(group, "targets")
    if "Embedding" in names:
        raise ArchitectureError("config.json quantises embeddings, which replicas don't read: leave them out")
    form = group.get("format") or raw.get("format")
    scheme = _read_scheme(Fields(weights), None if form == _MIXED else form)
    scheme = replace(scheme, are_inputs_rounded=isinstance(group.get("input_activations"), Mapping))
    exact = read_exact(one for one in names if one != _LINEAR)
    if exact.names:
        yield Rule(Targets(names=exact.names), scheme)
    for pattern in exact.patterns:
        yield Rule(Targets(patterns=(pattern,)), scheme)
    if _LINEAR in names:
        yield Rule(None, scheme)


def _rank(rule: Rule) -> tuple[int, str]:
    """Return the place of a rule: a name counts more than an expression, and that more than a class.

    Expressions are in the order of their letters, as in compressed-tensors' `match_targets`.
    """
    if rule.targets is None:
        return 2, ""
    return (1, rule.targets.patterns[0].pattern) if rule.targets.patterns else (0, "")


def _read_scheme(fields: Fields, form: Any) -> Scheme:
    kind = _read_kind(fields, form)
    strategy = str(fields.raw.get("strategy") or _guess_strategy(fields)).lower()
    has_zeros = not fields.flag("symmetric", default=True)
    fields.refuse("dynamic", unless=(False, None), advice="weights are rounded before they are stored")
    if has_zeros and kind is not Kind.INT4:
        raise ArchitectureError(
            "config.json has symmetric false for 8 bits; zero points are read in 4 bits: take a symmetric "
            "checkpoint"
        )
    rows, group = _read_area(fields, kind, strategy)
    is_packed = form == _PACKED or kind is Kind.INT4
    packing = Packing.COMPRESSED if is_packed else Packing.PLAIN
    return Scheme(kind, packing, rows, group, has_zeros, is_ordered=_is_ordered(fields))


def _read_kind(fields: Fields, form: Any) -> Kind:
    number, bits = str(fields.raw.get("type") or "int").lower(), fields.count("num_bits", 8)
    kinds = [kind for (one, *rest), kind in _KINDS.items() if rest == [number, bits] and form in (one, None)]
    if not kinds:
        named = "" if form is None else f" in the format {str(form)[:40]!r}"
        raise ArchitectureError(
            f"config.json has weights of type {number[:20]!r} in {bits} bits{named}; replicas read float "
            "and int in 8 bits and int in 4, packed: take the model's FP8 or INT4 checkpoint"
        )
    return kinds[0]


def _guess_strategy(fields: Fields) -> str:
    """Return the strategy of weights that name none, as compressed-tensors does."""
    if fields.raw.get("block_structure") is not None:
        return "block"
    group = fields.raw.get("group_size")
    if group is None:
        return "tensor"
    return "channel" if group == -1 else "group"


def _read_area(fields: Fields, kind: Kind, strategy: str) -> tuple[int | None, int | None]:
    """Return the outputs and the inputs that share a scale; None: all."""
    match strategy, kind:
        case "tensor", Kind.FP8 | Kind.INT8:
            return None, None
        case "channel", _:
            return 1, None
        case "group", Kind.FP8 | Kind.INT4:
            return 1, check_group(fields.count("group_size"), "group_size")
        case "block", Kind.FP8:
            if fields.has("block_structure"):
                return read_block(fields, "block_structure")
    raise ArchitectureError(
        f"config.json has strategy {strategy[:40]!r} for {kind.upper()}, which replicas don't read: take a "
        "checkpoint with a scale for each channel"
    )


def _is_ordered(fields: Fields) -> bool:
    order = fields.raw.get("actorder")
    order = order.lower() if isinstance(order, str) else order
    if order not in (None, False, True, "weight", "static", "group", "dynamic"):
        raise ArchitectureError(f"config.json has actorder {str(order)[:40]!r}; write group, weight or null")
    return order in (True, "group", "dynamic")
