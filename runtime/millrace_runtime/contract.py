"""The contract between operator, gateway and replica: ports, paths, flags, labels, metric names.

Standard library only: the operator imports this module and must never load torch. A name here is an
interface between processes of different versions. Change a name only together with its readers.
"""

import hashlib
from typing import Final

GROUP: Final = "millrace.dev"
VERSION: Final = "v1alpha1"
KIND: Final = "InferenceService"
PLURAL: Final = "inferenceservices"

# Labels of the objects that belong to a service. Selectors use these and no others.
LABEL_SERVICE: Final = "millrace.dev/service"
LABEL_REVISION: Final = "millrace.dev/revision"
LABEL_PENDING: Final = "millrace.dev/pending"  # on a revision's record: whether it is not made yet
LABEL_COMPONENT: Final = "millrace.dev/component"
COMPONENT_REPLICA: Final = "replica"  # on the pods that serve
COMPONENT_RESOLVER: Final = "resolver"  # on the pod of a Job that asks a model's source, or reads a claim
COMPONENT_FILLER: Final = "filler"  # on the pod of a Job that fetches a model into a claim, for all replicas

ANNOTATION_LEARNED: Final = "millrace.dev/autoscaler"  # on a revision's record: the autoscaler's state

# Models that nodes keep, for spec.model.cache.type NodeLocal. Each namespace that may have some has a claim,
# which is a folder on the node's own disk. In the claim, FOLDER_KEPT has a folder for each model.
CLAIM_KEPT: Final = "millrace-models"
VOLUME_KEPT: Final = "millrace-models-"  # prefix of the namespace: the chart's volume for that claim
FOLDER_KEPT: Final = "millrace"
LABEL_KEPT: Final = "millrace.dev/kept-model"  # on a pod that reads such a model: the model's name_kept
ANNOTATION_KEPT_BYTES: Final = (
    "millrace.dev/kept-model-bytes"  # on that pod, if known: the bytes of all files
)
# Prefix of a model's name_kept, as a label on a node with the whole model. The value is its size in bytes.
LABEL_KEPT_ON_NODE: Final = "models.millrace.dev/"


def name_kept(namespace: str, path: str) -> str:
    """Return the name of a model that nodes keep, by the path of its folder in the namespace's claim.

    It is a hash, so that readers of nodes do not learn which models a namespace has.
    """
    return hashlib.sha256(f"{namespace}/{path}".encode()).hexdigest()[:16]


# On a replica's pod that must leave: since when (RFC 3339). Gateways send such a pod no new requests.
ANNOTATION_LEAVING: Final = "millrace.dev/leaving-since"

# The leader's Lease has the SHA-256, in hex, of the token that the leader shows to gateways. PATH_LOADS sends
# a client with this token one line of JSON after the other: see `millrace_gateway/report/report.py`.
LEASE_OPERATOR: Final = "millrace-operator"
ANNOTATION_PROOF: Final = "millrace.dev/token-sha256"
DEFAULT_NAMESPACE: Final = "millrace-system"
PATH_LOADS: Final = "/loads"
LOADS_SECONDS: Final = 0.5  # between two lines

# Every command binds MILLRACE_BIND_ADDRESS; listener.py defines the default.
ENV_BIND_ADDRESS: Final = "MILLRACE_BIND_ADDRESS"
DEFAULT_BIND_ADDRESS: Final = ""  # all addresses, IPv6 and IPv4
PORT_HTTP: Final = 8000  # the OpenAI dialect, /readyz and /metrics
PORT_LIVE: Final = 8001  # the supervisor's /livez and /readyz, which need no HTTP process
PORT_NAME_HTTP: Final = "http"
PORT_NAME_METRICS: Final = "metrics"  # of a pod that clients call: the port that is not for clients
PORT_PROGRESS: Final = 8002  # the progress of a model's fetch, before its replica starts
PATH_LIVE: Final = "/livez"
PATH_READY: Final = "/readyz"
STARTED_WAIT_SECONDS: Final = 4
PATH_STARTED: Final = f"/readyz?wait={STARTED_WAIT_SECONDS}"  # answers once ready, or after the wait
PATH_METRICS: Final = "/metrics"
PATH_PROGRESS: Final = "/progress"
PATH_COMPLETIONS: Final = "/v1/completions"
PATH_CHAT_COMPLETIONS: Final = "/v1/chat/completions"
PATH_RESPONSES: Final = "/v1/responses"
PATH_MESSAGES: Final = "/v1/messages"
PATH_COUNT_TOKENS: Final = "/v1/messages/count_tokens"
PATH_TOKENIZE: Final = "/tokenize"
PATH_DETOKENIZE: Final = "/detokenize"
PATH_STREAM: Final = "/v1/stream"  # a WebSocket
PATHS_WORK: Final = frozenset(
    {
        PATH_COMPLETIONS,
        PATH_CHAT_COMPLETIONS,
        PATH_RESPONSES,
        PATH_MESSAGES,
        PATH_COUNT_TOKENS,
        PATH_TOKENIZE,
        PATH_DETOKENIZE,
    }
)
"""A POST to one of them asks for a generation. It wakes a service at zero, and keeps it awake."""
CONTAINER_REPLICA: Final = "replica"
CONTAINER_FETCH: Final = "fetch"  # brings the model before the replica starts
# On a replica's 503: it is shutting down and has not begun this request, so another replica may serve it.
HEADER_DRAINING: Final = "X-Millrace-Draining"

# On a request to a replica: who sends it. The prefix cache shares nothing between two values. Gateways take
# it from no client.
HEADER_CACHE_SALT: Final = "X-Millrace-Cache-Salt"

# On a request to a replica that answers only its gateway: the seconds for which it has waited for its turn
# there. The replica measures the request's latencies from that much earlier.
HEADER_WAITED: Final = "X-Millrace-Waited"

# Of a service whose clients need keys. Its replicas answer only requests with a gateway's token, which
# `gateway_token.py` signs and verifies. The private keys are in a Secret of the gateway's namespace.
HEADER_GATEWAY_TOKEN: Final = "X-Millrace-Gateway-Token"  # noqa: S105  a name
SECRET_GATEWAY_KEY: Final = "millrace-gateway-key"  # noqa: S105  a name
LABEL_API_KEYS: Final = (
    "millrace.dev/api-keys"  # "true" on Secrets with clients' keys: gateways read no other
)
COMPONENT_GATEWAY: Final = "gateway"

# What a replica reports to the gateway about an answer, if the request has HEADER_REPORT with the value
# REPORT_USAGE. A whole answer has HEADER_USAGE: `<prompt> <cached> <completion>`, in tokens. A stream has
# events instead, each a chunk of its own: USAGE_EVENT, the three numbers, two newlines. A request that has
# HEADER_EARLY_REPORT too gets heads of the status 102 with HEADER_USAGE until the answer begins: gateways of
# earlier releases count such heads towards the size of one, and do not ask. Gateways remove all of these.
HEADER_REPORT: Final = "X-Millrace-Report"
REPORT_USAGE: Final = "usage"
HEADER_EARLY_REPORT: Final = "X-Millrace-Early-Report"
HEADER_USAGE: Final = "X-Millrace-Usage"
USAGE_EVENT: Final = b": millrace-usage "
USAGE_SECONDS: Final = 0.25  # the least time between two such heads or events
# On each answer: `<waiting> <running> <max_sequences> <kv_usage>`. PATH_LOAD has the same as JSON.
HEADER_LOAD: Final = "X-Millrace-Load"
PATH_LOAD: Final = "/load"

# Flags of `millrace serve` that the operator renders into a pod.
FLAG_MODEL: Final = "--model"
FLAG_SERVED_NAME: Final = "--served-name"
FLAG_MAX_MODEL_LENGTH: Final = "--max-model-length"
FLAG_MAX_SEQUENCES: Final = "--max-sequences"
FLAG_MAX_BATCHED_TOKENS: Final = "--max-batched-tokens"
FLAG_SPECULATIVE_TOKENS: Final = "--speculative-tokens"
FLAG_TARGET_INTER_TOKEN: Final = "--target-inter-token-seconds"  # noqa: S105  the token is a model's
INTER_TOKEN_SECONDS: Final = (0.0001, 86400.0)  # the bounds of FLAG_TARGET_INTER_TOKEN
FLAG_WEIGHTS: Final = "--weights"
FLAG_KV_CACHE: Final = "--kv-cache"
FLAG_DEVICE: Final = "--device"
FLAG_TENSOR_PARALLEL: Final = "--tensor-parallel"
FLAG_DRAIN_SECONDS: Final = "--drain-seconds"
FLAG_SERVICE: Final = "--service"  # <namespace>/<name>, which a gateway's token names
FLAG_GATEWAY_KEY: Final = "--gateway-key"  # may be repeated: a public key whose tokens are accepted

# Exit statuses of a failing replica, which the operator reads. The last line of its log has the cause.
EXIT_BAD_MODEL: Final = 65  # EX_DATAERR: the model path is absent or has no supported model
EXIT_BAD_USAGE: Final = 64  # EX_USAGE: a flag has an invalid value

# Prometheus metrics of a replica (label model_name), under vLLM's names so that dashboards,
# KEDA scalers and the Gateway API Inference Extension's endpoint picker work unchanged.
METRIC_WAITING: Final = "vllm:num_requests_waiting"
METRIC_RUNNING: Final = "vllm:num_requests_running"
METRIC_KV_USAGE: Final = "vllm:kv_cache_usage_perc"
METRIC_MAX_SEQUENCES: Final = "millrace:max_sequences"  # gauge: the most sequences that a step computes
METRIC_KV_TOKENS: Final = "millrace:kv_cache_tokens"  # gauge: tokens that the KV cache holds
METRIC_MAX_MODEL_LENGTH: Final = "millrace:max_model_length"  # gauge: tokens of prompt and output together
# gauge, 1; its labels are the replica's Placement: device, device_name, dtype, weights, tensor_parallel,
# kv_cache
METRIC_REPLICA: Final = "millrace:replica_info"
METRIC_PREFIX_QUERIES: Final = "vllm:prefix_cache_queries"  # counter: tokens of prompts
METRIC_PREFIX_HITS: Final = "vllm:prefix_cache_hits"  # counter: those of them that were not computed
# histogram: tokens of a sequence's prompt that were computed, so without the cached ones
METRIC_COMPUTED_PROMPT_TOKENS: Final = "millrace:request_computed_prompt_tokens"
METRIC_DRAFTS: Final = "vllm:spec_decode_num_drafts"  # counter
METRIC_DRAFTED: Final = "vllm:spec_decode_num_draft_tokens"  # counter
METRIC_ACCEPTED: Final = "vllm:spec_decode_num_accepted_tokens"  # counter
METRIC_QUEUE: Final = "vllm:request_queue_time_seconds"
METRIC_TTFT: Final = "vllm:time_to_first_token_seconds"
METRIC_TPOT: Final = "vllm:request_time_per_output_token_seconds"
METRIC_ITL: Final = "vllm:inter_token_latency_seconds"
METRIC_E2E: Final = "vllm:e2e_request_latency_seconds"
METRIC_PROMPT_TOKENS: Final = "vllm:request_prompt_tokens"
METRIC_GENERATION_TOKENS: Final = "vllm:request_generation_tokens"
METRIC_REQUEST_SUCCESS: Final = "vllm:request_success"  # counter; label finished_reason
METRIC_RECEIVED: Final = "millrace:requests_received"  # counter: sequences
METRIC_REJECTED: Final = "vllm:admission_rejections"  # counter: sequences; label reason
REJECTED_LOAD: Final = ("overloaded", "unavailable", "failed")
"""Reasons of METRIC_REJECTED that another replica might not have had. The client causes the other reasons."""
# For the step-time model: the sizes of steps.
METRIC_STEP_SECONDS: Final = "millrace:step_seconds"  # histogram; label kind: decode | mixed
METRIC_STEP_SEQUENCES: Final = "millrace:step_sequences"  # histogram: sequences in a step
METRIC_STEP_CONTEXT_TOKENS: Final = "millrace:step_context_tokens"  # histogram: KV tokens read
METRIC_STEP_TOKENS: Final = "vllm:iteration_tokens_total"  # histogram: tokens computed in a step
# gauge: seconds of a trial step before the first request; labels tokens and context_tokens
METRIC_TRIAL_STEP: Final = "millrace:trial_step_seconds"
METRIC_STARTUP: Final = "millrace:startup_time_seconds"  # gauge; label phase

LATENCY_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0,
    2.5, 3.0, 4.0, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
"""Upper bounds of METRIC_TTFT and METRIC_QUEUE, in seconds: vLLM's, and usual targets."""
TOKEN_BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4,
    0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
"""Upper bounds of METRIC_TPOT and METRIC_ITL, in seconds."""
REQUEST_BUCKETS: Final = (
    0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
    50.0, 60.0, 90.0, 120.0, 180.0, 240.0, 300.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
"""Upper bounds of METRIC_E2E, in seconds: vLLM's, and usual targets."""
LENGTH_BUCKETS: Final = tuple(float(2**power) for power in range(21))
"""Upper bounds of METRIC_PROMPT_TOKENS and METRIC_COMPUTED_PROMPT_TOKENS, in tokens."""
ANSWER_BUCKETS: Final = (
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 50.0, 64.0, 100.0, 128.0, 150.0, 200.0, 250.0, 256.0, 300.0, 400.0, 500.0,
    512.0, 600.0, 700.0, 800.0, 1000.0, 1024.0, 1200.0, 1500.0, 2000.0, 2048.0, 2500.0, 3000.0, 4000.0,
    4096.0, 5000.0, 6000.0, 8000.0, 8192.0, 10000.0, 12000.0, 16000.0, 16384.0, 32000.0, 32768.0, 65536.0,
    131072.0, 262144.0, 524288.0, 1048576.0,
)  # fmt: skip
"""Upper bounds of METRIC_GENERATION_TOKENS, in tokens: powers of two, and usual values of max_tokens."""

SLOW_START_SECONDS: Final = 20.0
"""The time in which a newly Ready replica rises to its full share of the gateway's requests."""

# The gateway's own metrics (labels namespace, service).
METRIC_GATEWAY_ARRIVALS: Final = "millrace_gateway_requests_received_total"
METRIC_GATEWAY_FINISHED: Final = "millrace_gateway_requests_finished_total"  # label outcome
METRIC_GATEWAY_IN_FLIGHT: Final = "millrace_gateway_requests_in_flight"
PORT_GATEWAY: Final = 8080
PORT_GATEWAY_METRICS: Final = 8092  # /metrics, and PATH_LOADS for the operator
PORT_GATEWAY_PEERS: Final = 8093  # where gateways report to each other what clients have used
PORT_OPERATOR_METRICS: Final = 8090
PORT_NODE_CACHE: Final = 8091
