"""Checks a request's key and limits, settles its reservation by its use, and logs it."""

from collections.abc import Callable

from millrace_gateway.access.access_log import LoggedRequest
from millrace_gateway.access.errors import MissingKeyError, RateLimitedError, UnknownKeyError
from millrace_gateway.access.identity import Client, Tenant, read_credentials
from millrace_gateway.access.keys import KeyIndex
from millrace_gateway.access.limits.limiter import USUAL_COMPLETION, Limiter, estimate_usage
from millrace_gateway.access.limits.reservation import Admission, Usage, read_usage
from millrace_gateway.access.policy import OPEN, AccessPolicy, read_policy
from millrace_gateway.access.signer import Signer
from millrace_gateway.access.usage import UsageBook
from millrace_gateway.errors import GatewayKeyMissingError, LimitedWebSocketError
from millrace_gateway.front.exchange import Exchange
from millrace_gateway.http.head import Headers, find_header, is_event_stream
from millrace_gateway.http.request import Request
from millrace_gateway.http.usage_events import UsageEvents
from millrace_gateway.route.catalogue import Route
from millrace_gateway.route.objects import Replica, Service, ServiceKey
from millrace_runtime.contract import (
    HEADER_CACHE_SALT,
    HEADER_EARLY_REPORT,
    HEADER_GATEWAY_TOKEN,
    HEADER_REPORT,
    HEADER_USAGE,
    HEADER_WAITED,
    PATH_COMPLETIONS,
    REPORT_USAGE,
)

_TOKEN = HEADER_GATEWAY_TOKEN.lower().encode()
_SALT = HEADER_CACHE_SALT.lower().encode()
_WAITED = HEADER_WAITED.lower().encode()
_USAGE = HEADER_USAGE.lower().encode()
_REPORTS = [(name.lower().encode(), REPORT_USAGE.encode()) for name in (HEADER_REPORT, HEADER_EARLY_REPORT)]
_CREDENTIALS = (b"authorization", b"api-key", b"x-api-key")


class Guard:
    """Owner of the policies that it has read: keys, limits and counts have owners of their own."""

    def __init__(
        self,
        keys: KeyIndex,
        limiter: Limiter,
        signer: Signer,
        *,
        book: UsageBook,
        default: AccessPolicy,
        wall_clock: Callable[[], float],
        log: Callable[[LoggedRequest], None] | None,
    ) -> None:
        """`default` is the platform's policy. `wall_clock` returns seconds since 1970.

        `log` gets each request at its end.
        """
        self._keys = keys
        self._limiter = limiter
        self._signer = signer
        self._book = book
        self._default = default
        self._wall_clock = wall_clock
        self._log = log
        self._policies: dict[ServiceKey, tuple[Service, AccessPolicy]] = {}

    def find_policy(self, service: Service) -> AccessPolicy:
        """Return the policy of a service."""
        known = self._policies.get(service.key)
        if known is None or known[0] is not service:
            policy = read_policy(service.access, self._default, service.key.namespace)
            known = self._policies[service.key] = (service, policy)
        return known[1]

    def forget(self, service: ServiceKey) -> None:
        """Forget the policy of a deleted service."""
        self._policies.pop(service, None)

    def narrow(self, route: Route, find: Callable[[ServiceKey], Route | None]) -> Route:
        """Return the route with the oldest service alone, if one of several has keys or limits.

        Services that share a model name share its requests: none may be reached by the keys of another, and
        keys, limits and turns are of one service.
        """
        if len(route.services) == 1 or all(self.find_policy(one) == OPEN for one in route.services):
            return route
        return find(route.services[0].key) or route

    def check_key(self, request: Request, route: Route) -> Client | None:
        """Return the request's client; None if the route's oldest service has no keys.

        Raises the refusals of `access.errors`.
        """
        service = route.services[0]
        policy = self.find_policy(service)
        if not policy.needs_key:
            return None
        return self._keys.find(policy.secret, find_credentials(request), service.key)

    def find_owner(self, request: Request) -> Tenant | None:
        """Return the client of a request for a still unknown service; None unless one Secret has its key.

        A copy of its hash in another Secret would count the owner's bodies in another's part.
        """
        try:
            credentials = find_credentials(request)
        except UnknownKeyError:  # the service may need none
            return None
        clients = self._keys.find_all(credentials) if credentials else []
        return clients[0].tenant if len(clients) == 1 else None

    def admit(self, exchange: Exchange, num_body_bytes: int) -> Admission | None:
        """Reserve the request in the limits of its client and its service; None: it has neither.

        Raises the refusals of `access.errors`, and LimitedWebSocketError.
        """
        request, service = exchange.request, exchange.route.services[0]
        policy = self.find_policy(service)
        if policy == OPEN:
            return None
        client = self.check_key(request, exchange.route)
        if request.tunnel:
            raise LimitedWebSocketError(
                "This service has keys or limits, and a WebSocket escapes them: send each request by HTTP."
            )
        estimate = self._estimate(exchange, num_body_bytes)
        try:
            reservation = self._limiter.admit(client, service.key, policy, estimate.num_tokens)
        except RateLimitedError:
            if client is not None:
                self._book.count_refusal(client.tenant, service.key)
            raise
        return Admission(service.key, client, reservation, reservation.bound(estimate))

    @staticmethod
    def find_salt(admission: Admission | None) -> bytes:
        """Return the salt that no other client's prefixes have; empty without a client."""
        client = admission.client if admission is not None else None
        return client.salt.encode() if client is not None else b""

    def choose_headers(self, admission: Admission | None, replica: Replica) -> Headers:
        """Return the headers by which a replica knows gateway and client. Raises GatewayKeyMissingError."""
        headers: Headers = []
        if replica.gateway_keys:
            headers.append((_TOKEN, self._sign(replica)))
            if admission is not None and admission.waited_seconds:
                headers.append((_WAITED, b"%.3f" % admission.waited_seconds))
        if admission is not None:
            headers += _REPORTS
            if admission.client is not None:
                headers.append((_SALT, admission.client.salt.encode()))
        return headers

    def read_answer(
        self, admission: Admission | None, headers: Headers
    ) -> tuple[Callable[[bytes], bytes] | None, Headers]:
        """Return a filter of usage events for the answer's body, or None, and more headers for the client."""
        if admission is None:
            return None, []
        limits = admission.reservation.headers()
        more = [(name.encode(), value.encode()) for name, value in limits.items()]
        if is_event_stream(headers):
            return UsageEvents(admission.observe).convert, more
        admission.usage = read_usage(find_header(headers, _USAGE)) or admission.usage  # of an early report
        return None, more

    def settle(self, exchange: Exchange) -> None:
        """Settle the request's reservation at its end, and count its use."""
        admission = exchange.admission
        if admission is None:
            return
        if not admission.has_begun:
            admission.reservation.release()
            return
        admission.reservation.settle(admission.usage, may_be_more=admission.may_be_more)
        if admission.client is not None:
            self._book.count_request(admission.client.tenant, admission.service, exchange.use)

    def log(self, exchange: Exchange, seconds: float) -> None:
        """Write the request into the access log, if there is one."""
        if self._log is None:
            return
        admission, key = exchange.admission, exchange.service
        self._log(
            LoggedRequest(
                at=self._wall_clock() - seconds,
                seconds=seconds,
                status=exchange.status,
                outcome=exchange.outcome.value,
                client=str(admission.client.tenant) if admission and admission.client else "",
                namespace=key.namespace if key else "",
                service=key.name if key else "",
                model=exchange.model or "",
                request_id=(exchange.request.header(b"x-request-id") or b"").decode("latin-1"),
                usage=exchange.use,
            )
        )

    def describe_usage(self, request: Request, route: Route | None) -> dict[str, object]:
        """Return the use of the key's owner; at a service's Host only as a client of that service.

        Raises the refusals of `access.errors`.
        """
        credentials = find_credentials(request)
        policy = self.find_policy(route.services[0]) if route else OPEN
        if route is not None and policy.needs_key:
            clients = [self._keys.find(policy.secret, credentials, route.services[0].key)]
        elif credentials is None:
            raise MissingKeyError("Send an API key, to learn what it has used.")
        else:
            clients = self._keys.find_all(credentials)
            if not clients:
                raise UnknownKeyError("The API key is not valid.")
        return {"object": "list", "data": [self._book.describe(client.tenant) for client in clients]}

    def _estimate(self, exchange: Exchange, num_body_bytes: int) -> Usage:
        fields = exchange.fields
        if not exchange.is_generation:
            return Usage(0, 0, 0)
        most = fields.most_tokens
        if most is None and exchange.request.path == PATH_COMPLETIONS:
            most = USUAL_COMPLETION
        return estimate_usage(num_body_bytes, most, fields.num_sequences)

    def _sign(self, replica: Replica) -> bytes:
        token = self._signer.sign(replica.key, replica.gateway_keys)
        if token is None:
            raise GatewayKeyMissingError(
                "The gateway has no key that the service's replicas accept. The cluster's administrator "
                "finds the gateways' keys in the Secret millrace-gateway-key."
            )
        return token.encode()


def find_credentials(request: Request) -> str | None:
    """Return the API key of a request; None without one. Raises UnknownKeyError for two different ones."""
    sent = [header for header in request.headers if header[0] in _CREDENTIALS]
    if not sent:
        return None
    headers: dict[str, str] = {}
    for name, value in sent:
        text = value.decode("latin-1")
        if headers.setdefault(name.decode(), text) != text:
            raise UnknownKeyError("The request carries two different API keys: send one.")
    return read_credentials(headers)
