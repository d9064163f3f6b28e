"""What is known of a branch that a service follows: what it had, and when it was asked and is again. Pure."""

from collections.abc import Iterator

from millrace_kubectl.facts import Facts
from millrace_kubectl.kubectl import Obj
from millrace_kubectl.moments import describe_moment
from millrace_kubernetes.durations import parse_duration
from millrace_operator.resources.ask_times import EVERY, find_next_ask
from millrace_operator.resources.conditions import parse_time

BRANCH = "Branch"
"""Of spec.model.follow."""


def describe_branch(facts: Facts) -> Iterator[str]:
    """Yield the lines; none where no branch is followed, or nobody has looked at the service."""
    model: Obj = facts.service.get("spec", {}).get("model") or {}
    if not facts.status or model.get("follow") != BRANCH:
        return
    followed: Obj = (facts.status.get("model") or {}).get("followed") or {}
    age = facts.age(followed.get("askedAt"))
    had = "it was not asked yet" if age is None else f"it had revision {followed.get('revision')} {age} ago"
    yield f"{model['uri']}: {had}; {_describe_next(facts, model, followed)}"
    if followed.get("message"):
        yield f"it does not answer, and is asked on: {followed['message']}"


def _describe_next(facts: Facts, model: Obj, followed: Obj) -> str:
    asked_at = parse_time(followed.get("askedAt"))
    every, uid = parse_duration(model.get("followEvery") or EVERY), str(facts.service["metadata"]["uid"])
    due_at = facts.now if asked_at is None else find_next_ask(asked_at, every, uid)
    if facts.desired == 0:
        return "it is asked when the service has woken"
    if due_at > facts.now:
        return f"it is asked next at {describe_moment(due_at, facts.now)}"
    return "it is asked now, or once the newest revision serves completely"
