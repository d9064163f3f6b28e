"""Whether a model fits the GPUs of the nodes that are there, where its service names none. Pure.

It is refused for certain only where it fits on none of them. A node that tells nothing of its GPUs, or no
node at all, refuses nothing: an autoscaler may add one of any size.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from millrace_fit.accelerators import LABEL_MEMORY, LABEL_PRODUCT, Accelerator
from millrace_fit.facts import ModelFacts
from millrace_fit.settings import Settings
from millrace_fit.verdict import Answer, Verdict, judge
from millrace_fit.wording import Wording
from millrace_operator.model.gpu_candidates import Candidate

MOST_NAMES = 4
"""Of kinds of GPUs in a message."""


class Judged(NamedTuple):
    """What is known of a model on one kind of GPU."""

    candidate: Candidate
    accelerator: Accelerator
    verdict: Verdict


def judge_on_nodes(
    facts: ModelFacts, settings: Settings, candidates: Collection[Candidate], wording: Wording
) -> Verdict | None:
    """Return whether the model fits, in words that name the nodes' GPUs; None where these are not known."""
    known = [(one, gpu) for one in candidates if (gpu := one.accelerator)]
    if not known or len(known) < len(candidates):
        return None
    judged = [Judged(one, gpu, judge(facts, settings, gpu, wording)) for one, gpu in known]
    judged.sort(key=lambda one: (one.accelerator.memory_bytes, one.candidate))
    good = [one for one in judged if one.verdict.starts]
    bad = [one for one in judged if not one.verdict.starts]
    if good and bad:
        return _choose(good, bad)
    told = judged[0]  # the smallest
    if bad:
        told = next((one for one in reversed(bad) if not is_refused(one.verdict)), bad[-1])
    message = f"{told.verdict.message} (as nodes' labels tell of {_join(judged, 'and')})"
    return replace(told.verdict, message=message)


def is_refused(verdict: Verdict) -> bool:
    """Whether a replica cannot serve for certain: what is guessed of its memory refuses nothing."""
    plan = verdict.plan
    is_over = verdict.answer is Answer.DOES_NOT_FIT and plan is not None and plan.weights > plan.total
    return is_over or verdict.answer is Answer.UNSUPPORTED


def _choose(good: Sequence[Judged], bad: Sequence[Judged]) -> Verdict:
    """Return that it depends on the node, and which nodeSelector settles it."""
    chosen, others = good[0].candidate, {one.candidate.product for one in bad}
    label, text = LABEL_PRODUCT, chosen.product
    if not text or text in others:
        label, text = LABEL_MEMORY, f'"{chosen.memory}"'
    return Verdict(
        Answer.TIGHT,
        f"fits on {_join(good, 'and')} and not on {_join(bad, 'or')}, and a pod may get any of them",
        f"write {label}: {text} under pod.nodeSelector",
    )


def _join(judged: Sequence[Judged], word: str) -> str:
    """Return the names of the GPUs, each once."""
    names = list(dict.fromkeys(one.candidate.product or one.accelerator.name for one in judged))
    names = names[:MOST_NAMES] + (["others"] if len(names) > MOST_NAMES else [])
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"
