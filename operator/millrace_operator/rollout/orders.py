"""Which order of a person counts still. Pure.

The annotation stays where it was written, long after it was obeyed. So `status.spentOrder` remembers one that
is over: it speaks of a revision that the spec does not ask for, or what it brought was given up. It counts no
more, also where that revision comes back. Other words are another order, and so are the same ones after the
annotation was gone.
"""

from millrace_operator.api.annotations.rollout_order import Action, OrderError, find_order
from millrace_operator.kube.kinds import Obj


def find_action(service: Obj, revision: str) -> Action | None:
    """Return what is ordered of this revision now. An order that can't be read is none."""
    try:
        order = find_order(service)
    except OrderError:
        return None
    if order is None or order.revision != revision or str(order) == _find_spent(service):
        return None
    return order.action


def find_spent_order(service: Obj, revision: str, *, is_given_up: bool) -> str | None:
    """Return the order in the annotation if it is over; `revision` is the one that the spec asks for."""
    try:
        order = find_order(service)
    except OrderError:
        return None
    if order is None:
        return None
    is_over = order.revision != revision or is_given_up or str(order) == _find_spent(service)
    return str(order) if is_over else None


def _find_spent(service: Obj) -> str | None:
    spent: str | None = service.get("status", {}).get("spentOrder")
    return spent
