"""Decides after each look at the disk which models go, and which labels the Node gets. Pure.

A full disk gives up the least recently used models, and none that a pod of the node reads. Its limit is a
share of all of it, as `80%`, or an amount of models, as `500Gi`. By the labels the scheduler prefers a node
that has a model. They have no other use: one that is missing costs a fetch.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self

from millrace_node_cache.models import Look, Model
from millrace_runtime.contract import LABEL_KEPT_ON_NODE

_SHARE = re.compile(r"([0-9]{1,3})%")
_AMOUNT = re.compile(r"([0-9]{1,18})(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)")
_UNITS = {
    **{unit: 1000**power for power, unit in enumerate(("k", "M", "G", "T", "P"), start=1)},
    **{unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), start=1)},
}
MOST_OF_NAMESPACE = 64
"""A tenant can make any number of folders, and an object of the API has a largest size."""


@dataclass(frozen=True)
class ShareLimit:
    """A share of the disk, for all its users together."""

    percent: int

    def excess_bytes(self, look: Look) -> int:
        """Return the bytes above the limit, as if pods had fetched all their models."""
        allowed = look.space.total_bytes * self.percent // 100
        return max(0, look.space.used_bytes + look.coming_bytes - allowed)


@dataclass(frozen=True)
class AmountLimit:
    """A number of bytes, for the models alone."""

    num_bytes: int

    def excess_bytes(self, look: Look) -> int:
        """Return the bytes above the limit, as if pods had fetched all their models."""
        return max(0, look.kept_bytes + look.coming_bytes - self.num_bytes)


Limit = ShareLimit | AmountLimit


def parse_limit(text: str) -> Limit:
    """Return the limit. Raises ValueError, which says what to write."""
    if (share := _SHARE.fullmatch(text)) and 1 <= int(share[1]) <= 100:
        return ShareLimit(int(share[1]))
    if (amount := _AMOUNT.fullmatch(text)) and int(amount[1]) > 0:
        return AmountLimit(int(amount[1]) * _UNITS[amount[2]])
    raise ValueError(
        f"{text!r} is no limit; write a share of the disk from 1% to 100%, or an amount as 500Gi"
    )


@dataclass(frozen=True)
class EvictionPlan:
    """How much to free, and which models may go."""

    num_bytes: int
    """Bytes over the limit."""
    candidates: tuple[Model, ...]
    """The models that may go, the least recently used first. A fetch may still hold the lock of one."""

    def without_candidates(self) -> Self:
        """Return the same plan without any candidate."""
        return replace(self, candidates=())


def plan_eviction(look: Look, limit: Limit) -> EvictionPlan:
    """Return the models to evict until enough is free."""
    excess = limit.excess_bytes(look)
    if not excess:
        return EvictionPlan(0, ())
    free = [model for model in look.models if not (model.is_closed or look.may_be_in_use(model.key))]
    return EvictionPlan(excess, tuple(sorted(free, key=lambda model: (model.used_at, model.key))))


def plan_labels(present: Mapping[str, str], models: Iterable[Model]) -> dict[str, str | None]:
    """Return the changes of the Node's labels; None removes a label. Labels of others are never in it."""
    ours = {name: value for name, value in present.items() if name.startswith(LABEL_KEPT_ON_NODE)}
    wanted = _list_wanted(models)
    changed = {name: value for name, value in wanted.items() if ours.get(name) != value}
    return changed | dict.fromkeys(ours.keys() - wanted.keys())


def _list_wanted(models: Iterable[Model]) -> dict[str, str]:
    whole: dict[str, list[Model]] = defaultdict(list)
    for model in sorted(models, key=lambda each: (-each.used_at, each.key)):
        if model.is_whole:
            whole[model.key.namespace].append(model)
    labelled = [model for models in whole.values() for model in models[:MOST_OF_NAMESPACE]]
    return {f"{LABEL_KEPT_ON_NODE}{model.key.name}": str(model.whole_bytes) for model in labelled}
