"""Which service a request means: its Host, else the `model` in its body. Pure."""

import json
from typing import Any, NamedTuple

from millrace_gateway.address import parse_host
from millrace_gateway.catalogue import Catalogue, Route
from millrace_gateway.errors import BadRequestError, ModelNotFoundError
from millrace_gateway.objects import ServiceKey

_HOW_TO_NAME = 'Write "<namespace>/<name>" in "model", or call http://<name>.<namespace>.svc instead.'


class Addressed(NamedTuple):
    """A request whose service is known."""

    route: Route
    body: bytes
    """The body to send: as received, or with the model's name as the replicas know it."""


class HostRule(NamedTuple):
    """What a Host says of the service."""

    route: Route | None = None
    """The one that it names; None: `model` decides."""
    namespace: str | None = None
    """The one that a short `model` has to be of, as the Host may be meant as a service there."""
    meant: ServiceKey | None = None
    """The service that the Host would name with `.svc`."""


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
    names a service, it only keeps a short model name within that namespace, where this has services.
    """
    if host.partition(":")[0].lower().rstrip(".") in policy.public_hosts:
        return HostRule()
    address = parse_host(host, policy.cluster_domain)
    if address is None:
        return HostRule()
    namespace = address.key.namespace
    is_own, is_used = namespace == policy.own_namespace, catalogue.has_namespace(namespace)
    if not (address.is_qualified or policy.are_short):
        return HostRule(namespace=namespace if is_used and not is_own else None, meant=address.key)
    route = catalogue.find(address.key)
    if route is None and not is_own and (address.is_qualified or is_used):
        raise ModelNotFoundError(f"There is no InferenceService {address.key} for the host {host!r}.")
    return HostRule(route)


def route_model(catalogue: Catalogue, body: bytes, rule: HostRule = ANY_HOST) -> Addressed:
    """Read `model` from a JSON body and find its route. Raises BadRequestError or ModelNotFoundError.

    Replicas know only their served name. A body with `<namespace>/<name>` is written again with the served
    name; any other stays as it is.
    """
    document = _parse_body(body)
    model = document["model"]
    route = find_model(catalogue, model, rule)
    if model != route.served_name:
        body = json.dumps(document | {"model": route.served_name}, separators=(",", ":")).encode()
    return Addressed(route, body)


def find_model(catalogue: Catalogue, model: str, rule: HostRule = ANY_HOST) -> Route:
    """Return the route of a model name, within what the Host leaves to it. Raises ModelNotFoundError.

    The refusal is the same whether nobody has the name, several claim it, or it is of another namespace.
    """
    route = catalogue.find_model(model)
    if route is None or not _is_within(route, model, rule.namespace):
        raise ModelNotFoundError(describe_unknown(model, rule.meant))
    return route


def describe_unknown(model: str, meant: ServiceKey | None = None) -> str:
    """Return the message for a client that asked for a model that is not there.

    Who asks learns nothing of others' services. `meant` is the service that the Host may be meant as.
    """
    shown = repr(_shorten(model))
    bare = "" if "/" in model else ", or services of several namespaces claim the name, so that it leads to none"
    host = (
        f" If the host is to name a service, call http://{meant.name}.{meant.namespace}.svc." if meant else ""
    )
    return f"The model {shown} does not exist{bare}. {_HOW_TO_NAME}{host}"


def _is_within(route: Route, model: str, namespace: str | None) -> bool:
    key = route.services[0].key
    return namespace in (None, key.namespace) or model == str(key)


def _parse_body(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body) if body else None
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"The request body is not JSON: {error}.") from error
    if not isinstance(document, dict) or not isinstance(document.get("model"), str):
        raise BadRequestError(
            f'The request does not say which model it is for: send a JSON object with "model". {_HOW_TO_NAME}'
        )
    return document


def _shorten(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
