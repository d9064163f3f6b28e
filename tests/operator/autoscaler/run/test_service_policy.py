"""The policy that the autoscaler reads from a spec and the operator's settings."""

from millrace_operator.api.types import Spec
from millrace_operator.autoscaler.decide.policy import Objective
from millrace_operator.autoscaler.run.service_policy import read_policy
from millrace_operator.autoscaler.run.settings import PrometheusSettings, ScalingSettings

OBJECTIVE = {"metric": "TimeToFirstToken", "percentile": 95, "target": "500ms"}


def test_a_policy_is_read_from_the_spec() -> None:
    scaling = {"minReplicas": 2, "maxReplicas": 4, "objectives": [OBJECTIVE]}
    spec = Spec.model_validate(
        {"model": {"uri": "file:///m"}, "scaling": scaling, "engine": {"maxSequences": 8}}
    )
    policy = read_policy(spec, ScalingSettings(PrometheusSettings("http://unused"), 2.0, 60.0))
    assert (policy.min_replicas, policy.max_replicas, policy.max_sequences) == (2, 4, 8)
    assert (policy.tick_seconds, policy.scale_down_window_seconds) == (2.0, 60.0)
    assert policy.objectives == (Objective("TimeToFirstToken", 95, 0.5),)
