"""The state of one request on its way through the gateway."""

from millrace_gateway.front.body_budget import BodyShare
from millrace_gateway.front.early_stream import EarlyStream
from millrace_gateway.front.upstream import UpstreamRequest
from millrace_gateway.http.request import Request
from millrace_gateway.report.metrics import Outcome
from millrace_gateway.route.catalogue import Route
from millrace_gateway.route.routing import Addressed
from millrace_runtime.contract import PATHS_WORK


class Exchange:
    """One request, and what the gateway has found out about it."""

    __slots__ = ("early", "is_work", "model", "outcome", "request", "route", "share", "tried", "upstream")

    def __init__(self, request: Request, share: BodyShare) -> None:
        self.request = request
        self.share = share
        """The body's share of the memory of all bodies."""
        self.is_work = request.method == b"POST" and request.path in PATHS_WORK
        """Whether it asks for a generation. No other request wakes a service or keeps it awake."""
        self.early: EarlyStream | None = None
        """Its answer, if that may have to begin before a replica's: the client asks for a stream."""
        self.route: Route
        self.model: str | None
        """The service's name in the body; None if the body is forwarded unchanged."""
        self.upstream: UpstreamRequest
        self.tried: set[str] = set()
        """The uids of replicas that have refused it."""
        self.outcome = Outcome.CLIENT_LEFT
        """The default applies to a cancelled handler: the client has disconnected."""

    def note_address(self, addressed: Addressed) -> None:
        """Record the service, and what the body says."""
        self.route = addressed.route
        self.model = addressed.model
        if addressed.fields is not None and addressed.fields.is_stream:
            self.early = EarlyStream(self.request)

    def end(self) -> None:
        """Release what the request holds."""
        self.share.release()
        if self.early is not None:
            self.early.stop()
