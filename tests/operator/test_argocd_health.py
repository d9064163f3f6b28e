"""The health that Argo CD reads from a service's status: the shipped Lua, run by a real Lua."""

from typing import Any

import pytest
from lupa.lua51 import LuaRuntime  # Argo CD's Lua is of version 5.1

from millrace_operator.api.conditions import Reason
from tests.operator.test_chart import CHART

HEALTH = (CHART / "argocd" / "health.lua").read_text()
SERVING = {
    "type": "Ready",
    "status": "True",
    "reason": "Serving",
    "message": "1 of 1 desired replicas answer",
}
LOADING = {
    "type": "Ready",
    "status": "False",
    "reason": "Loading",
    "message": "pod chat-1 is loading the model",
}
AT_ZERO = {"type": "Ready", "status": "False", "reason": "ScaledToZero", "message": "spec.replicas is 0"}
BROKEN = {
    "type": "Degraded",
    "status": "True",
    "reason": str(Reason.CRASHING),
    "message": "pod chat-2 ends again",
}
WAITING = {
    "type": "Progressing",
    "status": "True",
    "reason": str(Reason.AWAITING_PROMOTION),
    "message": "a canary",
}
ROLLING = {"type": "Progressing", "status": "True", "reason": "RollingOut", "message": "revision b: 0 of 1"}
SETTLED = {"type": "Progressing", "status": "False", "reason": "Settled", "message": "1 of 1 are ready"}
NEWER = {"type": "Progressing", "status": "True", "reason": "OfANewerOperator", "message": "what is new"}
BEHIND = {"type": "UpToDate", "status": "False", "reason": "OfANewerOperator", "message": "what is new"}
SCALING = {"type": "Progressing", "status": "True", "reason": "Scaling", "message": "1 of 2 are ready"}


def judge(obj: dict[str, Any]) -> tuple[str, str]:
    lua = LuaRuntime(unpack_returned_tuples=True)
    lua.globals().obj = lua.table_from(obj, recursive=True)
    health = lua.execute(HEALTH)
    return health["status"], health["message"]


def service(*conditions: dict[str, str], observed: int = 3) -> dict[str, Any]:
    return {
        "metadata": {"generation": 3},
        "status": {"observedGeneration": observed, "conditions": conditions},
    }


@pytest.mark.parametrize(
    ("conditions", "expected", "telling"),
    [
        ([SERVING], "Healthy", SERVING),
        ([SERVING, SETTLED], "Healthy", SERVING),
        ([SERVING, SCALING], "Progressing", SCALING),
        ([SERVING, NEWER], "Progressing", NEWER),
        ([SERVING, SETTLED, BEHIND], "Progressing", BEHIND),
        ([SERVING, SETTLED, BEHIND, BROKEN], "Degraded", BROKEN),
        ([SERVING, ROLLING], "Progressing", ROLLING),
        ([SERVING, ROLLING, BROKEN], "Degraded", BROKEN),
        ([SERVING, WAITING], "Suspended", WAITING),
        ([SERVING, WAITING, BROKEN], "Degraded", BROKEN),
        ([LOADING], "Progressing", LOADING),
        ([AT_ZERO], "Suspended", AT_ZERO),
    ],
)
def test_health_follows_the_conditions(
    conditions: list[dict[str, str]], expected: str, telling: dict[str, str]
) -> None:
    assert judge(service(*conditions)) == (expected, telling["message"])


def test_what_the_operator_has_not_seen_is_progressing() -> None:
    assert judge({"metadata": {"generation": 1}})[0] == "Progressing"
    status, message = judge(service(SERVING, observed=2))
    assert (status, message) == ("Progressing", "waiting for the operator to see the change")
