"""What was decided about one request, and what its answer reports."""

from dataclasses import dataclass

from millrace_gateway.access.identity import Client
from millrace_gateway.access.limits.reservation import Reservation, Usage
from millrace_gateway.route.objects import ServiceKey


@dataclass(slots=True)
class Admission:
    """One admitted request of a service that has keys or limits."""

    service: ServiceKey
    client: Client | None
    reservation: Reservation
    estimate: int
    """Its tokens, as far as the request shows them."""
    usage: Usage | None = None
    """None until the replica has reported it."""
    may_be_more: bool = False
    """Whether the replica may have computed more than the gateway has read of its reports."""
    waited_seconds: float = 0.0
    """How long the request has waited for its turn."""
    has_begun: bool = False
    """Whether a replica may have begun the request."""

    @property
    def num_used(self) -> int | None:
        """The tokens that its tenant pays for; None: no replica has begun it.

        Where nobody knows what a begun request has used, it is the estimate: its client may have left just
        before the end.
        """
        if self.usage is None:
            return self.estimate if self.has_begun else None
        used = self.usage.num_tokens
        return max(used, self.estimate) if self.may_be_more else used

    def observe(self, text: bytes) -> None:
        """Take over what a stream has used so far."""
        usage = read_usage(text)
        if usage is not None:
            self.usage = usage
            self.reservation.observe(usage)


def read_usage(text: bytes | None) -> Usage | None:
    """Read `<prompt> <cached> <completion>`; None for anything else: tenants write what runs in replicas."""
    parts = (text or b"").split()
    if len(parts) != 3 or not all(part.isdigit() and len(part) < 10 for part in parts):
        return None
    return Usage(*map(int, parts))
