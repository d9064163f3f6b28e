"""Finds the service of a request: by its Host, else by `model` in its JSON body. Pure."""

import re
from functools import lru_cache
from typing import NamedTuple

from millrace_gateway.errors import BadRequestError, ModelNotFoundError
from millrace_gateway.route.body_fields import (
    UNREADABLE,
    WHOLE_BYTES,
    BodyFields,
    MalformedBodyError,
    read_fields,
)
from millrace_gateway.route.catalogue import Catalogue, Route
from millrace_gateway.route.objects import ServiceKey

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_PORT = re.compile(r":[0-9]{1,5}\Z")
_MOST_HOST_LETTERS = 300
"""No DNS name is longer. The gateway caches its reading of each Host, and a client may write one of 64
KiB."""

_MOST_SHOWN_LETTERS = 200
"""Letters of a model name that a refusal shows."""


class HostAddress(NamedTuple):
    """A Host of the form `<name>.<namespace>`, which may also be a public host."""

    key: ServiceKey
    is_qualified: bool
    """Whether `.svc` follows, so that it can only be a Service of this cluster."""


def parse_label(host: str) -> str | None:
    """Read `<name>[:port]`, which DNS has completed by its search list; None for a Host of any other form.

    `localhost` is excluded: it belongs to a forwarded port.
    """
    name = host.partition(":")[0].lower().rstrip(".")
    return name if _LABEL.match(name) and name != "localhost" else None


def find_port(host: str) -> str:
    """Return the written port of a Host, such as `:8080`; empty without one."""
    found = _PORT.search(host)
    return found[0] if found else ""


def parse_host(host: str, cluster_domain: str) -> HostAddress | None:
    """Read `<name>.<namespace>[.svc[.<cluster_domain>]][:port]`; None for a Host of any other form."""
    labels = host.partition(":")[0].lower().rstrip(".").split(".")
    key, suffix = labels[:2], ".".join(labels[2:])
    if len(key) != 2 or not all(map(_LABEL.match, key)) or all(label.isdigit() for label in key):
        return None
    if suffix not in ("", "svc", f"svc.{cluster_domain.lower()}"):
        return None
    return HostAddress(ServiceKey(namespace=key[1], name=key[0]), is_qualified=bool(suffix))


class Addressed(NamedTuple):
    """The service of a request."""

    route: Route
    model: str | None
    """The service's name in the body; None if the body is forwarded unchanged."""
    fields: BodyFields = UNREADABLE


class HostRule(NamedTuple):
    """The part of the routing that a Host decides."""

    route: Route | None = None
    """The named service; None: `model` decides."""
    namespace: str | None = None
    """A short `model` must be of this namespace, because the Host may mean a service there."""
    name: str | None = None
    """A short `model` must lead to a service with this name."""
    port: str = ""
    """The port of the call, such as `:8080`; empty for HTTP's default."""


ANY_HOST = HostRule()
"""A rule that leaves everything to the model."""


class HostPolicy(NamedTuple):
    """How the gateway reads a Host."""

    cluster_domain: str = "cluster.local"
    own_namespace: str | None = None
    """The gateway's: a Host there may be its own Service."""
    public_hosts: frozenset[str] = frozenset()
    """Hosts at which `model` decides, even if they look like a service's."""
    are_short: bool = False
    """Whether `<name>.<namespace>` without `.svc` names a service."""


class _Host(NamedTuple):
    """What the text of a Host says."""

    port: str
    is_public: bool
    label: str | None
    address: HostAddress | None
    open_rule: HostRule
    """The rule that leaves everything to the model."""


@lru_cache(maxsize=1024)
def _read_host(host: str, policy: HostPolicy) -> _Host:
    port = find_port(host)
    is_public = host.partition(":")[0].lower().rstrip(".") in policy.public_hosts
    found = parse_host(host, policy.cluster_domain)
    return _Host(port, is_public, parse_label(host), found, HostRule(port=port))


def route_host(catalogue: Catalogue, host: str, policy: HostPolicy) -> HostRule:
    """Return the rule of a Host: the named service, or limits for the model name.

    Raises ModelNotFoundError if the Host names a service that does not exist. The model does not decide then:
    clients of a deleted service may still have its DNS entry, and must not reach another service by it. In
    the gateway's own namespace the model does decide: there the Host may be the gateway's own Service.

    `<name>.<namespace>` may also be a public host, such as models.dev. So unless the platform says that it
    names a service, it only limits a short model name to that namespace, if the namespace has services. DNS
    may have completed a Host `<name>` with the client's own namespace, which the gateway does not know: if
    any service has that name, a short model name must lead to a service of that name.
    """
    read = _read_host(host[:_MOST_HOST_LETTERS], policy)
    port, address = read.port, read.address
    if read.is_public:
        return read.open_rule
    if address is None:
        is_used = read.label is not None and catalogue.has_service_named(read.label)
        return HostRule(name=read.label, port=port) if is_used else read.open_rule
    namespace = address.key.namespace
    is_own, is_used = namespace == policy.own_namespace, catalogue.has_namespace(namespace)
    if not (address.is_qualified or policy.are_short):
        return HostRule(namespace=namespace if is_used and not is_own else None, port=port)
    route = catalogue.find(address.key)
    if route is None and not is_own and (address.is_qualified or is_used):
        raise ModelNotFoundError(f"There is no InferenceService {address.key} for the host {host!r}.")
    return HostRule(route, port=port)


def address(catalogue: Catalogue, body: bytes, rule: HostRule = ANY_HOST) -> Addressed:
    """Find a request's service by its Host or the `model` in its body, and the name that the body uses.

    At a service's own address every body is accepted: the replica itself refuses another model's name. Raises
    BadRequestError or ModelNotFoundError.
    """
    try:
        fields = read_fields(body)
    except MalformedBodyError as error:
        if rule.route is not None:
            return Addressed(rule.route, None)
        raise _describe_malformed(str(error), rule.port) from error
    model = fields.model
    if rule.route is not None:
        is_name = model is not None and catalogue.is_name_of(rule.route, model)
        return Addressed(rule.route, model if is_name else None, fields)
    if model is None:
        raise _describe_malformed("", rule.port, is_long=len(body) > WHOLE_BYTES)
    return Addressed(find_model(catalogue, model, rule), model, fields)


def find_model(catalogue: Catalogue, model: str, rule: HostRule = ANY_HOST) -> Route:
    """Return the route of a model name, within the Host's rule. Raises ModelNotFoundError.

    The refusal is the same for an unknown name, a name that several claim, and a name of another namespace.
    """
    if rule.route is not None and catalogue.is_name_of(rule.route, model):
        return rule.route
    route = None if rule.route else catalogue.find_model(model)
    if route is None or not _is_within(route, model, rule):
        raise ModelNotFoundError(describe_unknown(model, rule.port))
    return route


def describe_unknown(model: str, port: str) -> str:
    """Return the message for a request with an unknown model.

    It reveals nothing of other tenants' services.
    """
    shown = repr(_shorten(model))
    bare = "" if "/" in model else ", or services of several namespaces claim the name, so it leads to none"
    return f"The model {shown} does not exist{bare}. {_explain_names(port)}"


def describe_absence(route: Route, num_refused: int) -> str:
    """Return the message for a client whose request no replica has taken.

    It does not name the service: a client that wrote a short name must not learn the namespace.
    """
    state = ", ".join(dict.fromkeys(service.state for service in route.services if service.state))
    cause = f"each of its {num_refused} ready replicas refused the request" if num_refused else state
    if state == "ScaledToZero":
        return (
            "The service has no replica (ScaledToZero), and requests do not start one: its owner, or an "
            "autoscaler, has to write spec.replicas."
        )
    return (
        f"The service has no replica that can answer now ({cause or 'its status has no reason'}). Try again "
        "later; its owner can see the reason with kubectl describe infsvc."
    )


def _is_within(route: Route, model: str, rule: HostRule) -> bool:
    key = route.services[0].key
    is_of_name = rule.name is None or any(service.key.name == rule.name for service in route.services)
    return (rule.namespace in (None, key.namespace) and is_of_name) or model == str(key)


def _describe_malformed(error: str, port: str, *, is_long: bool = False) -> BadRequestError:
    if error:
        return BadRequestError(f"The request body is not JSON: {error}.")
    if is_long:
        return BadRequestError(
            f'The gateway finds no "model" near the begin or the end of this long body: write "model" first. '
            f"{_explain_names(port)}"
        )
    return BadRequestError(
        f'The request names no model: send a JSON object with "model". {_explain_names(port)}'
    )


def _explain_names(port: str) -> str:
    return (
        f'Write "<namespace>/<name>" in "model", or call http://<name>.<namespace>.svc{port} instead, '
        "from inside the namespace, too."
    )


def _shorten(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN_LETTERS else f"{text[:_MOST_SHOWN_LETTERS]}…"
