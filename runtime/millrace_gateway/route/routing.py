"""Finds the service of a request: by its Host, else by `model` in its JSON body. Pure.

The JSON parser is the replicas' own: both refuse the same bodies, and of a repeated key the last value
counts. Values are not decoded and encoded again, so each is forwarded unchanged.
"""

import re
from typing import NamedTuple

import msgspec

from millrace_gateway.errors import BadRequestError, ModelNotFoundError
from millrace_gateway.route.catalogue import Catalogue, Route
from millrace_gateway.route.objects import ServiceKey

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class MalformedBodyError(ValueError):
    """The body is no JSON object, or its `model` is no text."""


_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_PORT = re.compile(r":[0-9]{1,5}\Z")


class HostAddress(NamedTuple):
    """A Host of the form `<name>.<namespace>`, which may be meant otherwise."""

    key: ServiceKey
    is_qualified: bool
    """`.svc` followed, so that it can only be meant as a Service of this cluster."""


def parse_label(host: str) -> str | None:
    """Read `<name>[:port]`, which a search in DNS has completed; None for a Host of any other form.

    `localhost` is a forwarded port's.
    """
    name = host.partition(":")[0].lower().rstrip(".")
    return name if _LABEL.match(name) and name != "localhost" else None


def find_port(host: str) -> str:
    """Return the port of a Host as it is written, such as `:8080`; empty where it has none."""
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
    """A request whose service is known."""

    route: Route
    model: str | None
    """What its body calls the service; None where the body goes to a replica as it came."""


class HostRule(NamedTuple):
    """What a Host says of the service."""

    route: Route | None = None
    """The one that it names; None: `model` decides."""
    namespace: str | None = None
    """The one that a short `model` has to be of, as the Host may be meant as a service there."""
    name: str | None = None
    """What the service has to be called that a short `model` leads to."""
    port: str = ""
    """At which the gateway was called, such as `:8080`; empty: at HTTP's own."""


ANY_HOST = HostRule()
"""One that leaves all to the model."""


class HostPolicy(NamedTuple):
    """How the gateway reads a Host."""

    cluster_domain: str = "cluster.local"
    own_namespace: str | None = None
    """Of the gateway: a Host there may be its own Service."""
    public_hosts: frozenset[str] = frozenset()
    """Those at which `model` decides, whatever they look like."""
    are_short: bool = False
    """Whether `<name>.<namespace>` without `.svc` names a service."""


def route_host(catalogue: Catalogue, host: str, policy: HostPolicy) -> HostRule:
    """Return the route that a Host decides, or what it leaves to the model.

    Raises ModelNotFoundError where the Host names a service that is not there. The model is not asked then:
    clients of a deleted service may still find its DNS entry, and must not reach another service by it.
    Only in the gateway's own namespace is it asked: there the Host may be the gateway's own Service.

    `<name>.<namespace>` may as well be a public host, such as models.dev. So unless the platform says that it
    names a service, it only keeps a short model name within that namespace, where this has services. A Host
    `<name>` may be one that DNS found in the client's own namespace, which is not known here: where any
    service is called so, a short model name must lead to one that is.
    """
    port = find_port(host)
    if host.partition(":")[0].lower().rstrip(".") in policy.public_hosts:
        return HostRule(port=port)
    address = parse_host(host, policy.cluster_domain)
    if address is None:
        name = parse_label(host)
        return HostRule(name=name if name and catalogue.has_service_named(name) else None, port=port)
    namespace = address.key.namespace
    is_own, is_used = namespace == policy.own_namespace, catalogue.has_namespace(namespace)
    if not (address.is_qualified or policy.are_short):
        return HostRule(namespace=namespace if is_used and not is_own else None, port=port)
    route = catalogue.find(address.key)
    if route is None and not is_own and (address.is_qualified or is_used):
        raise ModelNotFoundError(f"There is no InferenceService {address.key} for the host {host!r}.")
    return HostRule(route, port=port)


def address(catalogue: Catalogue, body: bytes, rule: HostRule = ANY_HOST) -> Addressed:
    """Find a request's service, by its Host or the `model` in its body, and what the body calls it.

    At a service's own address the body may be anything: what names another model the replica refuses itself.
    Raises BadRequestError or ModelNotFoundError.
    """
    try:
        model = read_model(body)
    except MalformedBodyError as error:
        if rule.route is not None:
            return Addressed(rule.route, None)
        raise _describe_malformed(str(error), rule.port) from error
    if rule.route is None:
        return Addressed(find_model(catalogue, model, rule), model)
    return Addressed(rule.route, model if catalogue.is_name_of(rule.route, model) else None)


def find_model(catalogue: Catalogue, model: str, rule: HostRule = ANY_HOST) -> Route:
    """Return the route of a model name, within what the Host says. Raises ModelNotFoundError.

    The refusal is the same whether nobody has the name, several claim it, or it is of another namespace.
    """
    if rule.route is not None and catalogue.is_name_of(rule.route, model):
        return rule.route
    route = None if rule.route else catalogue.find_model(model)
    if route is None or not _is_within(route, model, rule):
        raise ModelNotFoundError(describe_unknown(model, rule.port))
    return route


def describe_unknown(model: str, port: str) -> str:
    """Return the message for a client that asked for a model that is not there.

    Who asks learns nothing of others' services.
    """
    shown = repr(_shorten(model))
    bare = (
        "" if "/" in model else ", or services of several namespaces claim the name, so that it leads to none"
    )
    return f"The model {shown} does not exist{bare}. {_tell_how_to_name(port)}"


def describe_absence(route: Route, num_refused: int) -> str:
    """Return the message for a client whose request no replica has taken.

    It does not name the service: a client that wrote a name alone need not know whose it is.
    """
    state = ", ".join(dict.fromkeys(service.state for service in route.services if service.state))
    cause = f"each of its {num_refused} ready replicas refused the request" if num_refused else state
    if state == "ScaledToZero":
        return (
            "The service has no replica (ScaledToZero), and no request starts one: its owner has to write "
            "spec.replicas, or whatever scales it."
        )
    return (
        f"The service has no replica that can answer now ({cause or 'its status says no more'}). Try again "
        "later; kubectl describe infsvc tells its owner how it stands."
    )


def _is_within(route: Route, model: str, rule: HostRule) -> bool:
    key = route.services[0].key
    is_of_name = rule.name is None or any(service.key.name == rule.name for service in route.services)
    return (rule.namespace in (None, key.namespace) and is_of_name) or model == str(key)


def _describe_malformed(error: str, port: str) -> BadRequestError:
    if error:
        return BadRequestError(f"The request body is not JSON: {error}.")
    return BadRequestError(
        'The request does not say which model it is for: send a JSON object with "model". '
        f"{_tell_how_to_name(port)}"
    )


def _tell_how_to_name(port: str) -> str:
    return (
        f'Write "<namespace>/<name>" in "model", or call http://<name>.<namespace>.svc{port} instead, '
        "from inside the namespace, too."
    )


def _shorten(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"


def read_model(body: bytes) -> str:
    """Return the model that a body names. Raises MalformedBodyError."""
    try:
        return msgspec.json.decode(_FIELDS.decode(body)["model"], type=str)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError) as error:
        is_json = isinstance(error, (msgspec.ValidationError, KeyError))
        raise MalformedBodyError("" if is_json else str(error)) from error


def replace_model(body: bytes, model: str) -> bytes:
    """Return a body that `read_model` could read with another model."""
    return msgspec.json.encode({**_FIELDS.decode(body), "model": model})
