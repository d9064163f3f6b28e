"""When the source of a model that no replica serves is asked again. Pure.

Somebody may convert the files, or move a tag. What was told is in the revision's record, and counts until
something else is told. The pauses double with the record's age, so nobody has to count.
"""

from dataclasses import replace

from millrace_operator.api.conditions import Reason, parse_time
from millrace_operator.api.model_uri import is_fetched, is_pinned
from millrace_operator.kube.kinds import CONTROLLER_REVISION
from millrace_operator.model.jobs import find_made, find_words
from millrace_operator.model.pending_revision import Pending, Stage
from millrace_operator.observed.snapshot import ObjectId, Snapshot
from millrace_operator.render.metadata import revision_name
from millrace_operator.status.causes import Cause

FIRST_SECONDS, LAST_SECONDS = 60.0, 3600.0
"""From one Job's creation to the next one's: at first, and in the end."""
_QUOTED_LETTERS = 200
_AGAIN = "its source is asked again, ever more slowly and in the end once an hour"
_FINAL = "{0} never has another content: name another one in spec.model.uri"


def find_ask_time(snapshot: Snapshot, pending: Pending) -> float | None:
    """Return when the source is asked again, in seconds since 1970; None where it is not, or is now."""
    name = revision_name(snapshot.service, pending.revision)
    made_at = find_made(snapshot, name)
    if not pending.is_asked_again or made_at is None or find_words(snapshot, name) is None:
        return None
    record = snapshot.owned().get(ObjectId(CONTROLLER_REVISION.kind, name), {})
    told_at = parse_time(record.get("metadata", {}).get("creationTimestamp")) or made_at
    return made_at + min(LAST_SECONDS, max(FIRST_SECONDS, made_at - told_at))


def explain_unread(snapshot: Snapshot, job: str) -> Cause | None:
    """Return that this Job told nothing that can be read; None where it told nothing yet."""
    words = find_words(snapshot, job)
    if words is None:
        return None
    said = words.strip()[:_QUOTED_LETTERS] or "it was empty"
    return Cause(
        Reason.FETCH_FAILED,
        f"what a Job told of the model's source can't be read: {said}; another one asks in an hour",
    )


def note_asking(pending: Pending) -> Pending:
    """Return the same with whether the source of a model that no replica serves is asked again, and that."""
    cause = pending.cause
    is_of_model = pending.stage is Stage.NEVER and cause is not None and cause.reason is Reason.MODEL_INVALID
    if cause is None or not is_of_model or not is_fetched(pending.uri):
        return pending
    is_final = is_pinned(pending.uri)
    words = _FINAL.format(pending.uri) if is_final else _AGAIN
    told = Cause(cause.reason, f"{cause.message}; {words}")
    return replace(pending, cause=told, is_asked_again=not is_final)
