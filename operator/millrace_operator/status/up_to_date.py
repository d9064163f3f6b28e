"""Whether all that the spec asks for is there, in one word for people who wait for it. Pure."""

from millrace_operator.api.conditions import Reason, Truth

TYPE = "UpToDate"


def judge_up_to_date(ready: Truth, progressing: Truth, degraded: Truth, scaling: Truth) -> Truth:
    """Return the condition UpToDate: True, or the worst reason why not.

    It is made of other conditions alone, so it changes only when one of them does. A service of which all
    replicas serve may be Degraded: a child is refused, or somebody undoes its count. Then it is not True.
    """
    if degraded.status:
        return Truth(TYPE, False, degraded.reason, degraded.message)
    is_at_zero = ready.reason is Reason.SCALED_TO_ZERO
    if ready.reason is Reason.WAKING or not (ready.status or is_at_zero):
        return Truth(TYPE, False, ready.reason, ready.message)
    if progressing.status or progressing.reason is not Reason.SETTLED:
        return Truth(TYPE, False, progressing.reason, progressing.message)
    if scaling.reason is Reason.SIGNALS_MISSING:  # all is there that was asked for, and people see this word
        return Truth(TYPE, True, scaling.reason, scaling.message)
    told = ready if is_at_zero else progressing
    return Truth(TYPE, True, told.reason, told.message)
