"""The state of one request on its way through the gateway."""

from collections.abc import Callable
from http import HTTPStatus

from millrace_gateway.access.identity import Tenant
from millrace_gateway.access.limits.reservation import Admission, Usage
from millrace_gateway.front.body_budget import BodyShare
from millrace_gateway.front.early_stream import EarlyStream
from millrace_gateway.front.upstream import UpstreamRequest
from millrace_gateway.http.request import Request
from millrace_gateway.report.metrics import Outcome
from millrace_gateway.route.body_fields import UNREADABLE
from millrace_gateway.route.catalogue import Route
from millrace_gateway.route.objects import ServiceKey
from millrace_gateway.route.preference import Preference
from millrace_gateway.route.routing import Addressed
from millrace_runtime.contract import PATH_COUNT_TOKENS, PATH_DETOKENIZE, PATH_TOKENIZE, PATHS_WORK

_COUNTING = frozenset({PATH_COUNT_TOKENS, PATH_TOKENIZE, PATH_DETOKENIZE})


class Exchange:
    """One request, and what the gateway has found out about it."""

    __slots__ = (
        "admission",
        "avoided",
        "began",
        "early",
        "fields",
        "hold_until",
        "is_generation",
        "is_work",
        "model",
        "num_full",
        "on_begun",
        "outcome",
        "preference",
        "request",
        "route",
        "share",
        "status",
        "tried",
        "upstream",
    )

    def __init__(self, request: Request, share: BodyShare, began: float) -> None:
        self.request = request
        self.share = share
        """The body's share of the memory of all bodies."""
        self.is_work = request.method == b"POST" and request.path in PATHS_WORK
        """Whether it needs a replica's model. No other request wakes a service, and only
        a WebSocket keeps it awake, too."""
        self.is_generation = self.is_work and request.path not in _COUNTING
        """Whether it takes a place among the sequences: not if it only counts tokens."""
        self.began = began
        """By the loop's clock."""
        self.status = 0
        """The answer's status; 0 before it."""
        self.fields = UNREADABLE
        """What the body says."""
        self.admission: Admission | None = None
        """The client and its reservation; None: the service has neither keys nor limits."""
        self.early: EarlyStream | None = None
        """Its answer, if that may have to begin before a replica's: the client asks for a stream."""
        self.route: Route
        """The service, once it is known."""
        self.model: str | None = None
        """The service's name in the body; None if the body is forwarded unchanged."""
        self.upstream: UpstreamRequest
        self.preference: Preference | None = None
        """Its preference among replicas; None: the least loaded one."""
        self.hold_until: float | None = None
        """The end of its time to wait for a replica, by the loop's clock; None: it has not waited for one."""
        self.avoided: frozenset[str] = frozenset()
        """The uids of replicas that hang: it goes there only if there is no other."""
        self.tried: set[str] = set()
        """The uids of replicas that have refused it."""
        self.num_full = 0
        """How many of them were full."""
        self.on_begun: Callable[[], None] | None = None
        """To be called once a replica may have begun it."""
        self.outcome = Outcome.CLIENT_LEFT
        """The default applies to a cancelled handler: the client has disconnected."""

    def note_address(self, route: Route, addressed: Addressed) -> None:
        """Record the service, and what the body says."""
        self.route = route
        self.model = addressed.model
        self.fields = addressed.fields
        if addressed.fields.is_stream:
            self.early = EarlyStream(self.request)

    def note_wait(self) -> None:
        """Note that the request begins to wait: a stream's answer may have to begin before a replica's."""
        if self.early is not None:
            self.early.start()

    def note_begun(self) -> None:
        """Note that a replica may have begun the request: what was reserved is not given back."""
        if self.early is not None:
            self.early.stop()
        if self.admission is not None:
            self.admission.has_begun = True
        if self.on_begun is not None:
            self.on_begun()

    def note_relay_end(self, *, is_whole: bool, was_slow: bool) -> None:
        """Note how an answer's way to the client ended: reports of a slow client's use may be unread."""
        if self.admission is not None:
            self.admission.may_be_more = was_slow and not is_whole

    @property
    def num_sequences(self) -> int:
        """How many sequences a replica computes for it, as far as the body shows it; 1 if it only counts."""
        return self.fields.num_sequences if self.is_generation else 1

    @property
    def use(self) -> Usage | None:
        """What the book and the log count at its end; None: nothing.

        Without a report that is the estimate if the client has left, and nothing if the replica or the
        gateway failed.
        """
        admission = self.admission
        if admission is None or not admission.has_begun:
            return None
        has_left = self.outcome is Outcome.CLIENT_LEFT and self.status < HTTPStatus.BAD_REQUEST
        return admission.charged if has_left or admission.usage is not None else None

    @property
    def tenant(self) -> Tenant | None:
        """The client whose key the request has; None without one."""
        client = self.admission.client if self.admission is not None else None
        return client.tenant if client is not None else None

    @property
    def service(self) -> ServiceKey | None:
        """The service, once it is known."""
        route: Route | None = getattr(self, "route", None)
        return route.services[0].key if route else None

    def end(self) -> None:
        """Release what the request holds."""
        self.share.release()
        if self.early is not None:
            self.early.stop()
