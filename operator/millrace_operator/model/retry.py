"""When the source of a model is asked again that no pod serves, or that told what nobody can read. Pure.

Somebody may convert the files, or move a tag. What was told is in the revision's record, and counts until
something else is told. The pauses double with the time for which the model was not ready, so nobody has to
count.
"""

from dataclasses import replace

from millrace_operator.api.annotations.refresh import can_change, is_looked_at
from millrace_operator.api.conditions import Reason, find_condition, parse_time
from millrace_operator.kube.kinds import Obj
from millrace_operator.model.pending_revision import Pending, Stage
from millrace_operator.observed.jobs import Jobs
from millrace_operator.render.metadata import revision_name
from millrace_operator.status.causes import Cause

FIRST_SECONDS, LAST_SECONDS = 60.0, 3600.0
"""From one Job's creation to the next one's: at first, and in the end."""
_QUOTED_LETTERS = 200
_AGAIN = "its source is asked again, ever more slowly and in the end once an hour"
_NOW = f"{_AGAIN}, and at once by {{way}}"
_FINAL = "{uri} never has another content: another model is another address in spec.model.uri"
_LOOK = "once another model is in the claim, write {way}"


def find_ask_time(jobs: Jobs, service: Obj, pending: Pending) -> float | None:
    """Return when the source is asked again, in seconds since 1970; None where it is not, or is now."""
    name = revision_name(service, pending.revision)
    made_at = jobs.find_made(name)
    if not pending.is_asked_again or made_at is None or jobs.find_words(name) is None:
        return None
    condition = find_condition(service.get("status", {}), "ModelReady") or {}
    since = parse_time(condition.get("lastTransitionTime")) or made_at
    return made_at + min(LAST_SECONDS, max(FIRST_SECONDS, made_at - since))


def explain_unread(jobs: Jobs, job: str) -> Cause | None:
    """Return that this Job told nothing that can be read; None where it told nothing yet."""
    words = jobs.find_words(job)
    if words is None:
        return None
    said = words.strip()[:_QUOTED_LETTERS] or "it was empty"
    return Cause(Reason.FETCH_FAILED, f"what a Job told of the model's source can't be read: {said}")


def note_asking(pending: Pending, jobs: Jobs, service: Obj) -> Pending:
    """Return the same with whether its source is asked again, though a Job has told something, and that.

    A claim is not looked at again by itself: the pod that looks would hold it for a while each time.
    """
    job = revision_name(service, pending.revision)
    is_unread = pending.found is None and jobs.find_words(job) is not None
    if pending.cause is None or not (is_unread or pending.stage is Stage.NEVER):
        return pending
    if is_unread:
        words = _AGAIN
    elif can_change(pending.uri):
        words = _NOW
    else:
        words = _LOOK if is_looked_at(pending.uri) else _FINAL
    way = "kubectl millrace refresh {name} -n {namespace}".format_map(service["metadata"])
    told = f"{pending.cause.message}; {words.format(uri=pending.uri, way=way)}"
    return replace(pending, cause=Cause(pending.cause.reason, told), is_asked_again=words in (_AGAIN, _NOW))
