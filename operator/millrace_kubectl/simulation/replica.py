"""The simulated replica's hardware: from a user's file, from a running service's fit, or from both. Pure.

The fit is α + β·tokens + γ·context tokens. So in the simulated replica a step's overhead is α, a computed
token takes β and a context token γ. The minimum for the weights is zero, because α contains it.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from millrace_kubectl.errors import PluginError, UsageError
from millrace_kubectl.simulation.manifest import Manifest
from millrace_operator.autoscaler.decide.prior import PRIOR, PriorError, parse_prior, read_prior
from millrace_operator.autoscaler.simulate.hardware import Hardware

DEFAULTS = {field.name: field.default for field in dataclasses.fields(Hardware)}
POSITIVE = ("max_sequences", "max_batched_tokens", "kv_tokens", "pods_per_node")
NEEDED = ("overhead_seconds", "weights_seconds", "token_seconds", "context_seconds", "kv_tokens")
"""A file without a fit needs them: no real replica has the defaults by chance."""
FITTED = ("overhead_seconds", "token_seconds", "context_seconds")
"""The fields for α, β and γ."""
MOST_HITS = 0.99
RUNTIMES = {"cpu": (32, 512), "cuda": (256, 4096)}
"""The runtime's default batch sizes, if neither file nor `spec.engine` has any."""


class Replica(NamedTuple):
    """The simulated replica, with its assumed values."""

    hardware: Hardware
    assumed: str
    """The assumed fields with their values; empty if all are known."""


def read_fields(found: Mapping[str, Any], path: str) -> dict[str, float]:
    """Return a file's fields of `Hardware`. Raises UsageError that names a bad field."""
    if unknown := sorted(set(found) - set(DEFAULTS)):
        raise UsageError(
            f"{path}: {unknown[0]} is no field of a replica; write some of {', '.join(DEFAULTS)}"
        )
    return {name: _read_field(name, value, path) for name, value in found.items()}


def _read_field(name: str, value: Any, path: str) -> float:
    is_whole, least = isinstance(DEFAULTS[name], int), 1 if name in POSITIVE else 0
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # YAML reads 2e-5 as a text
    except (TypeError, ValueError):
        number = math.nan
    if not least <= number < math.inf or (is_whole and number != int(number)):
        kind = "whole number" if is_whole else "number"
        raise UsageError(
            f"{path}: {name} is {value!r}; write a {kind} from {least}, such as {DEFAULTS[name]:g}"
        )
    return int(number) if is_whole else number


def read_fit(name: str, learned: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the fields from a service's own fit, which the operator has written on the service's revision.

    Raises PluginError if there is no fit.
    """
    text = (learned or {}).get(PRIOR)
    if not isinstance(text, str):
        raise PluginError(f"{name} has no latency model yet: wait for load, or write --replica FILE")
    try:
        memory = read_prior(parse_prior(text), None, None)
    except PriorError as error:
        raise PluginError(f"the prior of {name} can't be used: {error}; write --replica FILE") from error
    if memory is None or not memory.model.is_proven or not sum(memory.model.coefficients):
        raise PluginError(
            f"the latency model of {name} does not fit yet: see kubectl millrace explain {name} -v, "
            "or write --replica FILE"
        )
    fitted = dict(zip(FITTED, memory.model.coefficients, strict=True))
    known = {"cold_start_seconds": memory.cold_start_seconds, "kv_tokens": memory.kv_tokens}
    known["kv_tokens"] = known["kv_tokens"] and int(known["kv_tokens"])
    known["prefix_hits"] = min(memory.prefix_hits.share, MOST_HITS) if memory.prefix_hits else None
    return {**fitted, "weights_seconds": 0.0, **{field: value for field, value in known.items() if value}}


def build_hardware(
    fields: Mapping[str, float], manifest: Manifest, cold_start: float | None, *, is_fitted: bool
) -> Replica:
    """Return the replica. Flag and manifest override the file, as on a cluster. Raises UsageError."""
    if not is_fitted and (missing := [name for name in NEEDED if name not in fields]):
        lacking = ", ".join(missing)
        raise UsageError(f"the replica's file lacks {lacking}; docs/how-to/simulate.md says what each is")
    own = {"max_sequences": manifest.max_sequences, "max_batched_tokens": manifest.max_batched_tokens}
    known = {**fields, **{name: value for name, value in own.items() if value is not None}}
    if cold_start is not None:
        known["cold_start_seconds"] = cold_start
    sizes = zip(own, RUNTIMES["cuda" if manifest.has_accelerator else "cpu"], strict=True)
    values = {**(dict(sizes) if is_fitted else {}), **known}
    try:
        hardware = Hardware(**values)  # type: ignore[arg-type]
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not hardware.step_seconds(1, 0):
        raise UsageError("a step of this replica takes no time; write overhead_seconds of more than 0")
    assumed = (f"{name} {getattr(hardware, name):g}" for name in DEFAULTS if name not in known)
    return Replica(hardware, ", ".join(assumed))


def describe_hardware(hardware: Hardware) -> str:
    """Return the main figures in one line."""
    read, compute = 1000 * hardware.weights_seconds, 1e6 * hardware.token_seconds
    shown = [
        f"a step takes {1000 * hardware.overhead_seconds:.3g}ms",
        f"the larger of {read:.3g}ms and {compute:.3g}µs a token",
        f"{1e6 * hardware.context_seconds:.3g}µs a context token",
    ]
    sizes = f"{hardware.max_sequences} sequences, {hardware.kv_tokens} tokens of KV"
    return f"{' + '.join(shown)}; {sizes}"
