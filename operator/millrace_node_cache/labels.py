"""Which labels tell of what a node has. Pure.

The scheduler prefers by them a node that has a model, and they say nothing else. One that is missing costs a
fetch.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from millrace_node_cache.models import Model
from millrace_runtime.contract import LABEL_KEPT_ON_NODE

MOST_OF_NAMESPACE = 64
"""Whoever writes a claim can make folders without end, and an object of the API has an end."""


def plan_labels(present: Mapping[str, str], models: Iterable[Model]) -> dict[str, str | None]:
    """Return what to change in the Node's labels; None: a label that goes. Others' labels are never in it."""
    ours = {name: value for name, value in present.items() if name.startswith(LABEL_KEPT_ON_NODE)}
    wanted = _list_wanted(models)
    changed = {name: value for name, value in wanted.items() if ours.get(name) != value}
    return changed | dict.fromkeys(ours.keys() - wanted.keys())


def _list_wanted(models: Iterable[Model]) -> dict[str, str]:
    whole: dict[str, list[Model]] = defaultdict(list)
    for model in sorted(models, key=lambda each: (-each.used_at, each.key)):
        if model.is_whole:
            whole[model.key.namespace].append(model)
    told = [model for one in whole.values() for model in one[:MOST_OF_NAMESPACE]]
    return {f"{LABEL_KEPT_ON_NODE}{model.key.name}": str(model.whole_bytes) for model in told}
