"""The condition AccessReady: whether clients reach the service, by its model name and with their keys. Pure.

Its messages name no other service, because a tenant need not know whose service claims the same name.
"""

from collections.abc import Mapping

from millrace_kubernetes.model_names import Standing
from millrace_operator.api.conditions import Reason, Truth
from millrace_operator.api.default_access import SecretRef
from millrace_operator.render.pod_template import served_name
from millrace_operator.status.inputs import StatusInputs

ACCESS_READY = "AccessReady"
_WHY: Mapping[Standing, str] = {
    Standing.SHARED: "services of other namespaces claim it too",
    Standing.PINNED: "the platform gives it to another service (the chart's gateway.shortNames)",
    Standing.ADDRESS: "it reads as the address of a service in another namespace",
}
_REFUSED = "The gateway refuses all requests until then"


def judge_access(inputs: StatusInputs) -> Truth:
    """Return whether clients reach the service. Without readable keys none does, whatever its name."""
    needs_keys = inputs.spec.access.needs_keys
    return (_find_fault_of_keys(inputs) if needs_keys else None) or _judge_name(inputs)


def _find_fault_of_keys(inputs: StatusInputs) -> Truth | None:
    """Return why the gateway has no keys of the service's clients; None if it may read them."""
    secret = _find_secret(inputs)
    if secret is None:
        text = (
            "clients need keys, and no Secret with keys is named: write "
            "spec.access.authentication.secretName, or have the platform name one (the chart's "
            f"gateway.access.authentication). {_REFUSED}"
        )
        return Truth(ACCESS_READY, False, Reason.SECRET_NAME_MISSING, text)
    if inputs.settings.access.can_read(secret.namespace):
        return None
    text = (
        f"clients need keys, and the gateway may not read Secret {secret.name} of namespace "
        f"{secret.namespace}: have the platform add {secret.namespace} to the chart's "
        f"gateway.secretNamespaces{_find_other_way(inputs)}. {_REFUSED}"
    )
    return Truth(ACCESS_READY, False, Reason.SECRET_NAMESPACE_NOT_READABLE, text)


def _find_secret(inputs: StatusInputs) -> SecretRef | None:
    return inputs.settings.access.find_secret(inputs.namespace, inputs.spec.access)


def _find_other_way(inputs: StatusInputs) -> str:
    if inputs.settings.access.secret_name is None:
        return ""
    return ", or leave spec.access.authentication.secretName out for the platform's keys"


def _judge_name(inputs: StatusInputs) -> Truth:
    """Return whether the name alone leads to the service. Its address and its full name always do."""
    settings, namespace, own = inputs.settings, inputs.namespace, inputs.name
    name, full = served_name(inputs.snapshot.service, inputs.spec), f"{namespace}/{own}"
    always = f'"{full}", or call {settings.url(namespace, own)}'
    if former := inputs.snapshot.name.former:
        shown = " and ".join(f'"{one}"' for one in former)
        always += f". Replicas still run with the name {shown}, which leads here until they are replaced"
    why = _WHY.get(inputs.snapshot.name.standing)
    if why is not None:
        text = (
            f'the model name "{name}" alone does not lead here: {why}. Clients write "model": {always}. Or '
            "the platform pins the name: the chart's gateway.shortNames"
        )
        return Truth(ACCESS_READY, False, Reason.NAME_SHADOWED, text)
    text = f'clients write "model": "{name}" or {always}'
    if inputs.spec.access.needs_keys:
        text = f"each client shows a key of {_name_secret(inputs)}; {text}"
        return Truth(ACCESS_READY, True, Reason.KEYS_READABLE, text)
    return Truth(ACCESS_READY, True, Reason.NAME_HELD, text)


def _name_secret(inputs: StatusInputs) -> str:
    own = inputs.spec.access.secret_name
    return "the platform's Secret" if own is None else f"Secret {own}"
