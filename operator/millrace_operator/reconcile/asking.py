"""The Jobs that ask the source of a revision's model, one after the other. Pure.

A source may have another model later: somebody converts the files, or moves a tag. So it is asked again where
it told of a model that no replica serves, or nothing that can be read. What it told counts until it has told
something else: the Job that told it stays so long, and two names take turns.
"""

from dataclasses import replace
from typing import NamedTuple

from millrace_operator.cluster.kinds import JOB, Obj
from millrace_operator.reconcile.causes import Cause
from millrace_operator.reconcile.jobs import find_job, find_words, seconds_to_loss
from millrace_operator.reconcile.pending import Pending, Stage
from millrace_operator.reconcile.render.metadata import again_name, fill_name, revision_name
from millrace_operator.reconcile.snapshot import ObjectId, Snapshot
from millrace_operator.resources.conditions import Reason, parse_time
from millrace_operator.resources.model_uri import is_fetched, is_pinned
from millrace_runtime import contract

FIRST_SECONDS, LAST_SECONDS = 60.0, 3600.0
"""From one Job's creation to the next one's: at first, and in the end."""
_MOST_DOUBLINGS = 6
_QUOTED_LETTERS = 200
_AGAIN = "its source is asked again, ever more slowly and in the end once an hour"
_FINAL = "{0} never has another content: name another one in spec.model.uri"


class Asker(NamedTuple):
    """A Job that asks."""

    name: str
    number: int = 0
    """How many have asked before it, in a row."""


def pause_seconds(number: int) -> float:
    """Return after how many seconds the next one asks."""
    return min(LAST_SECONDS, FIRST_SECONDS * 2.0 ** min(number, _MOST_DOUBLINGS))


def list_askers(snapshot: Snapshot, revision: str) -> list[Asker]:
    """Return those of a revision that are there, the newest first."""
    names = (revision_name(snapshot.service, revision), again_name(snapshot.service, revision))
    found = [Asker(name, _read_number(job)) for name in names if (job := find_job(snapshot, name))]
    return sorted(found, key=lambda one: one.number, reverse=True)


def choose_askers(snapshot: Snapshot, pending: Pending, now: float) -> list[Asker]:
    """Return those that are to exist: who told last, who asks now, and the next one where that is due.

    What it told counts until the record is written, or until another Job has it. It isn't made anew then.
    """
    found, is_resolving = list_askers(snapshot, pending.revision), pending.stage is Stage.RESOLVE
    if not found:
        has_filler = ObjectId(JOB.kind, fill_name(snapshot.service, pending.revision)) in snapshot.owned()
        first = Asker(revision_name(snapshot.service, pending.revision))
        return [] if has_filler and not is_resolving else [first]
    newest, *older = found
    if find_words(snapshot, newest.name) is None:
        left = seconds_to_loss(snapshot, newest.name, now)
        is_lost = left is not None and left <= 0 and (is_resolving or pending.is_asked_again)
        return older if is_lost else found
    due_at = find_ask_time(snapshot, pending)
    if due_at is None or now < due_at or older:  # an older one has to go before its name is free
        return [newest]
    return [newest, Asker(_find_other_name(snapshot, pending.revision, newest.name), newest.number + 1)]


def find_working(snapshot: Snapshot, pending: Pending) -> str | None:
    """Return the name of the one that asks now; None where none does."""
    found = list_askers(snapshot, pending.revision)
    return found[0].name if found and find_words(snapshot, found[0].name) is None else None


def find_ask_time(snapshot: Snapshot, pending: Pending) -> float | None:
    """Return when the next one asks, in seconds since 1970; None where none is to, or one does now."""
    found = list_askers(snapshot, pending.revision)
    is_open = pending.is_asked_again or pending.stage is Stage.RESOLVE
    if not (found and is_open and is_fetched(pending.uri)) or find_words(snapshot, found[0].name) is None:
        return None
    made_at = parse_time(find_job(snapshot, found[0].name)["metadata"].get("creationTimestamp"))
    return None if made_at is None else made_at + pause_seconds(found[0].number)


def explain_unread(snapshot: Snapshot, jobs: list[str]) -> Cause | None:
    """Return that the first of these Jobs that told anything told nothing that can be read."""
    words = next((words for name in jobs if (words := find_words(snapshot, name)) is not None), None)
    if words is None:
        return None
    said = words.strip()[:_QUOTED_LETTERS] or "it was empty"
    return Cause(
        Reason.FETCH_FAILED, f"what a Job told of the model's source can't be read: {said}; {_AGAIN}"
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


def _find_other_name(snapshot: Snapshot, revision: str, name: str) -> str:
    first = revision_name(snapshot.service, revision)
    return again_name(snapshot.service, revision) if name == first else first


def _read_number(job: Obj) -> int:
    """Return a Job's number, which anybody may have written; 0 where it is none."""
    text = str(job["metadata"].get("annotations", {}).get(contract.ANNOTATION_ASKS, ""))
    return int(text) if text.isascii() and text.isdigit() and len(text) < len(str(2**31)) else 0
