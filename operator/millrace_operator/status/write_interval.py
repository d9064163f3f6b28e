"""When a status is written of which words alone are new. Pure.

Schedulers, kubelets and registries say the same in other words again and again, such as with another count of
nodes. Each would be a write of its own. So such writes of one service keep a distance. The last words are
written in the end, and whatever else changes takes the words along at once.
"""

from typing import Any, NamedTuple

Json = dict[str, Any]
PAUSE_SECONDS = 4.0
"""With the second that events wait for others, a pod's own words are told within 5 s."""


class Pause(NamedTuple):
    """Whether words alone are new, and for how long they wait."""

    is_of_words: bool
    seconds: float | None = None
    """Until they are written; None where they need not wait."""


def judge_words(old: Json, new: Json, worded_at: float | None, now: float) -> Pause:
    """Return whether a status waits; `worded_at` is when words alone were written last."""
    if _list_words(old) == _list_words(new) or leave_out_words(old) != leave_out_words(new):
        return Pause(is_of_words=False)
    left = 0.0 if worded_at is None else worded_at + PAUSE_SECONDS - now
    return Pause(is_of_words=True, seconds=left if left > 0 else None)


def _list_words(status: Json) -> list[Any]:
    words = [one.get("message") for one in status.get("conditions", [])]
    return [*words, status.get("model", {}).get("fetched")]


def leave_out_words(status: Json) -> Json:
    """Return the status without words, and without figures, which are written along with them."""
    conditions = [{**one, "message": None} for one in status.get("conditions", [])]
    left = {**status, "conditions": conditions, "scaling": {**status.get("scaling", {}), "evidence": None}}
    if "model" in status:  # how far a fetch is, ModelReady says in words too
        left["model"] = {field: value for field, value in status["model"].items() if field != "fetched"}
    return left
