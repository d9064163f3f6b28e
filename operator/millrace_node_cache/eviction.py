"""Which models a full disk gives up: the least recently used, and none that a pod of the node reads. Pure."""

from dataclasses import dataclass, replace
from typing import Self

from millrace_node_cache.limit import Limit
from millrace_node_cache.models import Look, Model


@dataclass(frozen=True)
class EvictionPlan:
    """What is to be freed, and of what."""

    num_bytes: int
    """How much is too much."""
    candidates: tuple[Model, ...]
    """Those that may go, the least recently used first. A fetch may still hold one's lock."""

    def without_candidates(self) -> Self:
        """Return the same where nothing may go."""
        return replace(self, candidates=())


def plan_eviction(look: Look, limit: Limit) -> EvictionPlan:
    """Return what to evict, until enough is free."""
    excess = limit.excess_bytes(look)
    if not excess:
        return EvictionPlan(0, ())
    free = [model for model in look.models if not (model.is_closed or look.may_be_in_use(model.key))]
    return EvictionPlan(excess, tuple(sorted(free, key=lambda model: (model.used_at, model.key))))
