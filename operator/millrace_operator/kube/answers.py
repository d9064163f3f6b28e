"""Reads the API server's answers, and makes objects compact for the cache. Pure.

A proxy in between may answer with JSON of its own, a Status among it. So an answer counts only if it has the
fields that the API server stores in every object or list. Nothing else is checked, because that
would cost time at each write.

Two thousand services have 14,000 objects, most of whose keys and words are the same. A Deployment takes 13 kB
as the parser leaves it and 7 kB when compact, for 30 us of work.
"""

import sys
from typing import Any, NamedTuple

import orjson

from millrace_operator.api.removed_fields import APPLIED, find_removed
from millrace_operator.kube.errors import (
    AbsentError,
    ConflictError,
    ExpiredError,
    RefusedError,
    TransientError,
)
from millrace_operator.kube.kinds import (
    INFERENCE_SERVICE,
    Kind,
    Obj,
)
from millrace_runtime import contract

REMOVED_FIELDS = "removedFields"
"""Where compact metadata of a service has the fields of its manifest that the spec lacks."""
UNKEPT = {APPLIED: None, contract.ANNOTATION_LEARNED: ""}
"""Annotations without a copy (None), or without their text."""
LONGEST_SHARED = 128
"""Longer texts, such as messages, are rarely the same."""


class Page(NamedTuple):
    """A part of a list."""

    objects: list[Obj]
    """Made compact, with apiVersion and kind in each."""
    token: str
    """The next page's token; empty after the last one."""
    version: int
    """The list's resourceVersion."""


def read_page(kind: Kind, answer: Obj) -> Page:
    """Return the page in an answer. Raises TransientError for another answer."""
    head, items = {"apiVersion": kind.api_version, "kind": kind.kind}, answer.get("items", "")
    if not isinstance(items, list | None):
        raise TransientError(f"no list of {kind.plural} in the answer: {str(answer)[:200]}")
    try:
        metadata = answer["metadata"]
        objects = [compact({**head, **kind.trim(item)}) for item in items or ()]
        return Page(objects, metadata.get("continue") or "", int(metadata["resourceVersion"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TransientError(f"no list of {kind.plural} in the answer: {error!r}") from error


def read_object(kind: Kind, answer: Obj, request: str) -> Obj:
    """Return an answer that is a stored object of this kind. Raises TransientError for another answer."""
    if answer.get("kind") == kind.kind and _is_of_stored(answer.get("metadata")):
        return answer
    raise TransientError(f"{request}: no {kind.kind} in the answer: {str(answer)[:200]}")


def _is_of_stored(metadata: Any) -> bool:
    if not isinstance(metadata, dict):
        return False
    name, uid, version = metadata.get("name"), metadata.get("uid"), metadata.get("resourceVersion")
    return isinstance(name, str) and isinstance(uid, str) and isinstance(version, str) and version.isdecimal()


def parse_answer(content: bytes, request: str) -> Obj:
    """Return the JSON object in an answer with status 200. Raises TransientError for anything else."""
    try:
        parsed = orjson.loads(content)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise TransientError(f"{request}: no JSON object in the answer: {_quote(content)!r}")
    return parsed


def raise_for_status(status: int, content: bytes, retry_after: str | None) -> None:
    """Raise the ClusterError for an HTTP status; nothing for one below 400."""
    if status < 400:
        return
    message = _read_message(content) or f"HTTP {status}"
    if status == 409 or (status == 422 and _is_of_another_object(content)):
        raise ConflictError(message)
    if status == 404:
        raise AbsentError(message)
    if status in (400, 403, 405, 413, 415, 422):
        raise RefusedError(message)
    if status == 410:
        raise ExpiredError(message)
    seconds = float(retry_after) if retry_after and retry_after.isdigit() else None
    raise TransientError(f"HTTP {status}: {message}", seconds)


def _is_of_another_object(content: bytes) -> bool:
    """Whether a refusal concerns only the uid: another object has the name now."""
    try:
        causes = orjson.loads(content)["details"]["causes"]
        return bool(causes) and all(cause.get("field") == "metadata.uid" for cause in causes)
    except (ValueError, LookupError, TypeError, AttributeError):
        return False


def _read_message(content: bytes) -> str:
    """Return the message of a Status object, or else the beginning of the answer."""
    try:
        return str(orjson.loads(content).get("message", ""))
    except (ValueError, AttributeError):
        return _quote(content)


def _quote(content: bytes) -> str:
    """Return the beginning of an answer, for an error's message."""
    return content[:200].decode(errors="replace")


def compact(obj: Obj) -> Obj:
    """Return the object without its managers, kubectl's copy, and the autoscaler's knowledge.

    Of the first two a service keeps the names of the fields that its manifest has and its spec lacks.
    """
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    if obj.get("kind") == INFERENCE_SERVICE.kind and (removed := find_removed(obj["metadata"])):
        metadata[REMOVED_FIELDS] = removed
    if UNKEPT.keys() & (metadata.get("annotations") or {}).keys():
        kept = ((key, UNKEPT.get(key, value)) for key, value in metadata["annotations"].items())
        metadata["annotations"] = {key: value for key, value in kept if value is not None}
    shared: Obj = _share({**obj, "metadata": metadata})
    return shared


def _share(value: Any) -> Any:
    if type(value) is str:
        return sys.intern(value) if len(value) <= LONGEST_SHARED else value
    if type(value) is dict:
        return {sys.intern(key): _share(each) for key, each in value.items()}
    if type(value) is list:
        return [_share(each) for each in value]
    return value
