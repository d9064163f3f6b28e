"""Whether clients reach a service by the model name that it claims. Pure.

The messages name no other service: who claims the same name need not know whose it is.
"""

from collections.abc import Mapping

from millrace_kubernetes.model_names import Standing
from millrace_operator.api.conditions import Reason, Truth
from millrace_operator.render.pod_template import served_name
from millrace_operator.status.inputs import StatusInputs

TYPE = "AccessReady"
_WHY: Mapping[Standing, str] = {
    Standing.SHARED: "services of other namespaces claim it too",
    Standing.PINNED: "the platform gives it to another service (the chart's gateway.shortNames)",
    Standing.ADDRESS: "it reads as the address of a service in another namespace",
}


def judge_access(inputs: StatusInputs) -> Truth:
    """Return whether the name alone leads to the service. Its address and its full name always do."""
    service, settings = inputs.snapshot.service, inputs.settings
    namespace, own = service["metadata"]["namespace"], service["metadata"]["name"]
    name, full = served_name(service, inputs.spec), f"{namespace}/{own}"
    always = f'"{full}", or call {settings.url(namespace, own)}'
    if former := inputs.snapshot.former_names:
        shown = " and ".join(f'"{one}"' for one in former)
        always += f". Replicas still run with the name {shown}, which leads here until they are replaced"
    why = _WHY.get(inputs.snapshot.standing)
    if why is None:
        return Truth(TYPE, True, Reason.NAME_HELD, f'clients write "model": "{name}" or {always}')
    text = (
        f'the model name "{name}" alone does not lead here: {why}. Clients write "model": {always}. Or the '
        "platform pins the name: the chart's gateway.shortNames"
    )
    return Truth(TYPE, False, Reason.NAME_SHADOWED, text)
