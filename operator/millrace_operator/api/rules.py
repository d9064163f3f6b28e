"""CEL rules of the CRD, each with a message that says what to write.

Rules over several fields stand at spec level with a fieldPath. A `matches` rule guards every `duration()`,
because a text that is no duration would be an evaluation error with a message of its own.
"""

from typing import Any

from millrace_kubernetes.durations import DURATION_PATTERN
from millrace_operator.api.prices import CURRENCY_PATTERN, PRICE_PATTERN
from millrace_operator.api.quantities import WHOLE_GPUS
from millrace_runtime import contract

CANARY_PATTERN = "^([1-9][0-9]{0,3}|[1-9][0-9]?%|100%)$"
_HUB_NAME = "[A-Za-z0-9_][A-Za-z0-9_-]*([.][A-Za-z0-9_-]+)*"
HUB_PATTERN = f"^hf://{_HUB_NAME}(/{_HUB_NAME})?(@[A-Za-z0-9_][A-Za-z0-9_./-]*)?$"
"""A repository without '..', then a branch, a tag or a commit."""
BUCKET_PATTERN = "^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^ ]*)?$"
REGISTRY_PATTERN = (
    "^oci://[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?/[a-z0-9]+([._/-]+[a-z0-9]+)*"
    "(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}|@sha256:[0-9a-f]{64})?$"
)
NAME_MAX_LENGTH = 50  # the longest child name is <name>-replicas, a Service: at most 63


_HAS_CLAIM = "(has(self.model.cache) && self.model.cache.type == 'PersistentVolumeClaim')"
_HAS_CACHE = "(has(self.model.cache) && self.model.cache.type != 'None')"
_MAX_WAIT = "self.scaling.activation.maxWait"
_HAS_AUTHENTICATION = "(has(self.access) && has(self.access.authentication))"
_HAS_KEYS = f"({_HAS_AUTHENTICATION} && self.access.authentication.mode == 'APIKey')"
_HAS_LIMITS = "(has(self.access) && has(self.access.rateLimits))"


def _is_positive_duration(path: str) -> str:
    return f"{path}.matches('{DURATION_PATTERN}') && duration({path}) > duration('0s')"


def _has_no_own_keys(field: str) -> dict[str, Any]:
    path = f"self.pod.{field}"
    return {
        "rule": f"!has(self.pod) || !has({path}) || {path}.all(key, !key.startsWith('millrace.dev/'))",
        "message": f"keys under millrace.dev/ are the operator's own; write another key in spec.pod.{field}",
        "fieldPath": f".pod.{field}",
    }


def _has_a_worker_for_each(gpu: str) -> dict[str, Any]:
    limits = "self.resources.limits"
    return {
        "rule": "!has(self.parallelism) || !has(self.parallelism.tensor) || !has(self.resources) || "
        f"!has({limits}) || !('{gpu}' in {limits}) || "
        f"string({limits}['{gpu}']) == string(self.parallelism.tensor)",
        "message": "each worker has a GPU of its own: write parallelism.tensor as the number of GPUs in "
        "resources.limits, or leave it out",
        "fieldPath": ".parallelism.tensor",
    }


SPEC_RULES: list[dict[str, Any]] = [
    {
        "rule": r"self.model.uri.matches('^file:///[^ \t\n]+$') || "
        r"self.model.uri.matches('^pvc://[a-z0-9][-a-z0-9.]*/[^ \t\n]+$') || "
        f"self.model.uri.matches('{HUB_PATTERN}') || "
        f"self.model.uri.matches('{BUCKET_PATTERN}') || "
        f"self.model.uri.matches('{REGISTRY_PATTERN}') || "
        r"self.model.uri.matches('^https?://[^/ \t\n]+/[^ \t\n]*$')",
        "message": "write model.uri as hf://organisation/model@revision, s3://bucket/folder, "
        "oci://registry/repository:tag, https://host/folder, pvc://claim-name/path or file:///absolute/path",
        "fieldPath": ".model.uri",
    },
    {
        "rule": "!self.model.uri.contains('/../') && !self.model.uri.endsWith('/..')",
        "message": "write model.uri without '..'",
        "fieldPath": ".model.uri",
    },
    {
        "rule": "!self.model.uri.startsWith('http') || !self.model.uri.matches('[@?#]')",
        "message": "write model.uri without a user, a password, a query or a fragment: everybody who may "
        "read the service can read them",
        "fieldPath": ".model.uri",
    },
    {
        "rule": "!has(self.model.credentials) || self.model.uri.matches('^(hf|s3|oci|https)://')",
        "message": "model.credentials are for a model at hf://, s3://, oci:// or https://: leave them out, "
        "or write model.uri so",
        "fieldPath": ".model.credentials",
    },
    {
        "rule": f"!{_HAS_CLAIM} || has(self.model.cache.claimName)",
        "message": "with model.cache.type PersistentVolumeClaim write model.cache.claimName: the name of a "
        "claim of this namespace",
        "fieldPath": ".model.cache.claimName",
    },
    {
        "rule": f"!has(self.model.cache) || !has(self.model.cache.claimName) || {_HAS_CLAIM}",
        "message": "model.cache.claimName is read with model.cache.type PersistentVolumeClaim alone: write "
        "that type, or leave claimName out",
        "fieldPath": ".model.cache.type",
    },
    {
        "rule": f"!has(self.model.cache) || !has(self.model.cache.claimName) || "
        f"self.model.cache.claimName != '{contract.CLAIM_KEPT}'",
        "message": f"the claim {contract.CLAIM_KEPT} is another folder on each node: write model.cache.type "
        "NodeLocal without claimName, or name another claim",
        "fieldPath": ".model.cache.claimName",
    },
    {
        "rule": f"!{_HAS_CACHE} || self.model.uri.matches('^(hf|s3|oci|https?)://')",
        "message": "a model at pvc:// or file:// is at hand: leave model.cache out, or write model.uri as "
        "hf://, s3://, oci://, https:// or http://",
        "fieldPath": ".model.cache",
    },
    {
        "rule": "self.scaling.maxReplicas >= self.scaling.minReplicas",
        "message": "scaling.maxReplicas is below scaling.minReplicas; write maxReplicas at least as large",
        "fieldPath": ".scaling.maxReplicas",
    },
    {
        "rule": "self.scaling.mode == 'External' || !has(self.replicas) || (oldSelf.hasValue() && "
        "has(oldSelf.value().replicas) && oldSelf.value().replicas == self.replicas)",
        "optionalOldSelf": True,
        "message": "the operator decides the replica count in this scaling.mode: write scaling.minReplicas "
        "and scaling.maxReplicas instead, or set scaling.mode External for kubectl scale, an HPA or KEDA",
        "reason": "FieldValueForbidden",
        "fieldPath": ".replicas",
    },
    {
        "rule": "!has(self.scaling.objectives) || self.scaling.objectives.all(objective, "
        + _is_positive_duration("objective.target")
        + ")",
        "message": "write each objective's target as a duration above zero, such as 500ms or 2s",
        "fieldPath": ".scaling.objectives",
    },
    {
        "rule": _is_positive_duration("self.scaling.scaleToZeroAfter"),
        "message": "write scaling.scaleToZeroAfter as a duration above zero, such as 10m or 1h",
        "fieldPath": ".scaling.scaleToZeroAfter",
    },
    {
        "rule": "!has(self.scaling.activation) || " + _is_positive_duration(_MAX_WAIT),
        "message": "write scaling.activation.maxWait as a duration above zero, such as 5m or 90s",
        "fieldPath": ".scaling.activation.maxWait",
    },
    {
        "rule": f"!has(self.scaling.activation) || !{_MAX_WAIT}.matches('{DURATION_PATTERN}') "
        f"|| duration({_MAX_WAIT}) <= duration('1h')",
        "message": "write scaling.activation.maxWait up to 1h: clients and proxies don't wait longer",
        "fieldPath": ".scaling.activation.maxWait",
    },
    {
        "rule": _is_positive_duration("self.rollout.schedulingTimeout"),
        "message": "write rollout.schedulingTimeout as a duration above zero, such as 5m or 90s",
        "fieldPath": ".rollout.schedulingTimeout",
    },
    {
        "rule": _is_positive_duration("self.rollout.progressDeadline"),
        "message": "write rollout.progressDeadline as a duration above zero, such as 10m or 1h30m",
        "fieldPath": ".rollout.progressDeadline",
    },
    {
        "rule": "!has(self.rollout.canary) || string(self.rollout.canary.replicas)"
        f".matches('{CANARY_PATTERN}')",
        "message": "write rollout.canary.replicas as a number from 1 to 9999, or a share from 1% to 100%",
        "fieldPath": ".rollout.canary.replicas",
    },
    {
        "rule": "!has(self.rollout.canary) || " + _is_positive_duration("self.rollout.canary.duration"),
        "message": "write rollout.canary.duration as a duration above zero, such as 10m or 2h",
        "fieldPath": ".rollout.canary.duration",
    },
    _has_no_own_keys("labels"),
    _has_no_own_keys("annotations"),
    {
        "rule": "!has(self.cost) || !has(self.cost.acceleratorHour) || "
        f"self.cost.acceleratorHour.matches('{PRICE_PATTERN}')",
        "message": 'write cost.acceleratorHour as decimal text, such as "2.50"',
        "fieldPath": ".cost.acceleratorHour",
    },
    {
        "rule": "!has(self.cost) || !has(self.cost.acceleratorHour) || (has(self.resources) && "
        "has(self.resources.limits) && self.resources.limits.exists_one(name, name.contains('/')))",
        "message": "cost.acceleratorHour is the price of the one resource of resources.limits that has a "
        "slash in its name, such as nvidia.com/gpu; without one, or with several, write cost.resourceHours "
        "with each name",
        "fieldPath": ".cost.acceleratorHour",
    },
    {
        "rule": "!has(self.cost) || !has(self.cost.resourceHours) || self.cost.resourceHours.all(name, "
        f"self.cost.resourceHours[name].matches('{PRICE_PATTERN}'))",
        "message": 'write each price of cost.resourceHours as decimal text, such as {cpu: "0.04"}',
        "fieldPath": ".cost.resourceHours",
    },
    {
        "rule": "!has(self.cost) || !has(self.cost.currency) || "
        f"self.cost.currency.matches('{CURRENCY_PATTERN}')",
        "message": "write cost.currency as three capital letters, such as EUR",
        "fieldPath": ".cost.currency",
    },
    {
        "rule": "!has(self.cost) || has(self.cost.acceleratorHour) || has(self.cost.resourceHours)",
        "message": "write a price beside the currency: cost.acceleratorHour or cost.resourceHours",
        "fieldPath": ".cost",
    },
    *(_has_a_worker_for_each(gpu) for gpu in WHOLE_GPUS),
    {
        "rule": f"!{_HAS_AUTHENTICATION} || !has(self.access.authentication.secretName) || {_HAS_KEYS}",
        "message": "access.authentication.secretName is read with mode APIKey alone: write that mode, or "
        "leave secretName out",
        "fieldPath": ".access.authentication.secretName",
    },
    {
        "rule": f"!{_HAS_LIMITS} || {_HAS_KEYS} || self.access.rateLimits.all(limit, limit.per != 'Key')",
        "message": "a limit per Key needs clients with keys: write access.authentication: {mode: APIKey}, "
        "or per: Service",
        "fieldPath": ".access.rateLimits",
    },
    {
        "rule": f"!{_HAS_LIMITS} || self.access.rateLimits.all(limit, has(limit.requestsPerMinute) || "
        "has(limit.tokensPerMinute) || has(limit.concurrency))",
        "message": "write in each of access.rateLimits at least one of requestsPerMinute, tokensPerMinute "
        "and concurrency",
        "fieldPath": ".access.rateLimits",
    },
]

ROOT_RULES: list[dict[str, Any]] = [
    {
        "rule": f"self.metadata.name.size() <= {NAME_MAX_LENGTH} && "
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "message": "metadata.name becomes the name of Services: write at most "
        f"{NAME_MAX_LENGTH} lower-case letters, digits and '-', beginning with a letter, without dots",
    },
]
