"""Whether an operator leads, by the Lease that it renews."""

from millrace_kubectl.errors import PluginError
from millrace_kubectl.kubectl import Services
from millrace_kubectl.moments import describe_moment, describe_seconds
from millrace_operator.api.conditions import parse_time
from millrace_runtime import contract

SILENT_SECONDS = 60.0
"""A Lease is renewed every 2 s. The clocks here and there may differ."""


def find_silence(services: Services, now: float) -> str | None:
    """Return since when no operator leads, in words; None where one does, or who asks may not know it."""
    try:
        leases = services.list_leases(contract.LEASE_OPERATOR)
    except PluginError:
        return None
    if not leases:
        return "no operator leads: there is no Lease of one"
    renewals = [parse_time((lease.get("spec") or {}).get("renewTime")) for lease in leases]
    last = max((at for at in renewals if at is not None), default=None)
    if last is None or now - last < SILENT_SECONDS:
        return None
    return f"no operator leads since {describe_moment(last, now)}, {describe_seconds(now - last)} ago"
