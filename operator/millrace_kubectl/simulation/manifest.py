"""Reads an InferenceService's manifest for a simulation: bounds, objectives, sizes, price.

The API server checks a manifest when it is applied. Here only the used fields are checked.
"""

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace_kubectl.errors import UsageError
from millrace_kubectl.wording import METRICS
from millrace_kubernetes.durations import parse_duration
from millrace_operator.api.prices import PriceError, Prices, add_prices, is_accelerator, list_items
from millrace_operator.api.quantities import parse_number
from millrace_operator.autoscaler.decide.policy import Objective, PolicyError

Obj = dict[str, Any]
NO_YAML = "{path} is YAML, and PyYAML is not installed: pip install 'millrace[simulate]', or write it as JSON"
KIND = "InferenceService"
MODES = ("Automatic", "DryRun", "External")
PERCENTILES = range(50, 100)
EXAMPLE = "{metric: TimeToFirstToken, percentile: 95, target: 2s}"


def read_text(path: Path) -> str:
    """Return a file's text. Raises UsageError."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; write the path of a file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text; write the path of a text file") from error


def read_documents(path: Path) -> list[Obj]:
    """Return a file's objects, one or more. Raises UsageError."""
    text = read_text(path)
    found = _parse_json(path, text) if path.suffix == ".json" else _parse_yaml(path, text)
    documents = [document for document in found if document is not None]
    if not documents or not all(isinstance(document, dict) for document in documents):
        raise UsageError(f"{path} is no object; write fields with values, such as kind: InferenceService")
    return documents


def _parse_json(path: Path, text: str) -> list[Any]:
    try:
        return [json.loads(text)]
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}") from error


def _parse_yaml(path: Path, text: str) -> list[Any]:
    try:
        yaml = importlib.import_module("yaml")
    except ImportError as error:
        raise UsageError(NO_YAML.format(path=path)) from error
    try:
        return list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is no YAML: {' '.join(str(error).split())}") from error


@dataclass(frozen=True)
class Price:
    """The cost of a replica."""

    per_replica_hour: float
    currency: str


@dataclass(frozen=True)
class Manifest:
    """The simulated part of one service."""

    name: str
    namespace: str
    """Empty if the manifest names none."""
    mode: str
    min_replicas: int
    max_replicas: int
    objectives: tuple[Objective, ...]
    max_sequences: int | None
    max_batched_tokens: int | None
    price: Price | None
    has_accelerator: bool


def pick_service(documents: Sequence[Mapping[str, Any]], path: str) -> Mapping[str, Any]:
    """Return the one InferenceService of a file. Raises UsageError."""
    services = [document for document in documents if document.get("kind") == KIND]
    if len(services) != 1:
        found = "no" if not services else str(len(services))
        raise UsageError(f"{path} has {found} {KIND}; write a file with one")
    return services[0]


def read_manifest(service: Mapping[str, Any]) -> Manifest:
    """Return the manifest of a service's object. Raises UsageError that names the field."""
    metadata, spec = _part(service, "metadata"), _part(service, "spec")
    scaling, engine = _part(spec, "spec.scaling"), _part(spec, "spec.engine")
    least = _read_count(scaling, "spec.scaling.minReplicas") or 1
    most = _read_count(scaling, "spec.scaling.maxReplicas") or 1
    if most < least:
        raise UsageError(f"spec.scaling.maxReplicas is {most}; write {least} (minReplicas) or more")
    mode = scaling.get("mode", MODES[0])
    if mode not in MODES:
        raise UsageError(f"spec.scaling.mode is {mode!r}; write one of {', '.join(MODES)}")
    return Manifest(
        name=str(metadata.get("name", "service")),
        namespace=str(metadata.get("namespace", "")),
        mode=str(mode),
        min_replicas=least,
        max_replicas=most,
        objectives=_read_objectives(scaling.get("objectives")),
        max_sequences=_read_count(engine, "spec.engine.maxSequences"),
        max_batched_tokens=_read_count(engine, "spec.engine.maxBatchedTokens"),
        price=read_reported_price(service) or _read_price(spec),
        has_accelerator=any(is_accelerator(str(name)) for name in _read_limits(spec)),
    )


def _part(parent: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    found = parent.get(path.rpartition(".")[2])
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise UsageError(f"{path} is {found!r}; write fields with values")
    return found


def _read_count(parent: Mapping[str, Any], path: str) -> int | None:
    value = parent.get(path.rpartition(".")[2])
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise UsageError(f"{path} is {value!r}; write a whole number from 1")
    return value


def _read_objectives(found: Any) -> tuple[Objective, ...]:
    if not isinstance(found, list) or not found:
        raise UsageError(
            f"spec.scaling.objectives has none, and a simulation compares by them; write {EXAMPLE}"
        )
    return tuple(_read_objective(item, number) for number, item in enumerate(found))


def _read_objective(item: Any, number: int) -> Objective:
    path = f"spec.scaling.objectives[{number}]"
    try:
        if item["metric"] not in METRICS:
            raise UsageError(f"{path}.metric is {item['metric']!r}; write one of {', '.join(METRICS)}")
        percentile = _read_percentile(item["percentile"], f"{path}.percentile")
        return Objective(item["metric"], percentile, parse_duration(str(item["target"])))
    except PolicyError as error:
        raise UsageError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} is {item!r}; write for example {EXAMPLE}") from error


def _read_percentile(value: Any, path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value not in PERCENTILES:
        raise UsageError(
            f"{path} is {value!r}; write a whole number from {PERCENTILES[0]} to {PERCENTILES[-1]}"
        )
    return value


def _read_limits(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    return _part(_part(spec, "spec.resources"), "spec.resources.limits")


def read_reported_price(service: Mapping[str, Any]) -> Price | None:
    """Return the price in a running service's status: the operator knows the cluster's prices, too."""
    cost = (service.get("status") or {}).get("cost") or {}
    each = parse_number(cost.get("replicaPerHour"))
    return None if each is None else Price(each, str(cost.get("currency", "?")))


def _read_price(spec: Mapping[str, Any]) -> Price | None:
    """Return the price in the spec, by the operator's own rules. Raises UsageError."""
    cost = _part(spec, "spec.cost")
    hours = {str(name): str(text) for name, text in _part(cost, "spec.cost.resourceHours").items()}
    currency, accelerator = (
        None if (value := cost.get(field)) is None else str(value)
        for field in ("currency", "acceleratorHour")
    )
    try:
        prices = add_prices(Prices(), currency, accelerator, hours)
    except PriceError as error:
        raise UsageError(f"spec.cost: {error}") from error
    items = list_items(prices, _read_limits(spec))
    each = sum(float(item.amount * item.price) for item in items)
    return Price(each, prices.currency) if items else None
