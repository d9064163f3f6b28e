"""The settings of `millrace serve`, parsed once."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

DEMO_NAME = "stories"
DEMO_PATH = Path(__file__).parent.parent / "demo" / DEMO_NAME
DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16")
TOOL_PARSERS = (
    "auto",
    "none",
    "deepseek_v3",
    "deepseek_v31",
    "functiongemma",
    "gemma4",
    "glm4",
    "glm45",
    "granite",
    "harmony",
    "hermes",
    "internlm",
    "kimi_k2",
    "llama3",
    "minicpm3",
    "mistral",
    "nemotron",
    "phi4_mini",
    "phi4_mini_json",
    "pythonic",
    "qwen3_coder",
    "seed_oss",
)
REASONING_PARSERS = (
    "auto",
    "none",
    "gemma4",
    "granite",
    "harmony",
    "minicpm3",
    "mistral",
    "seed_oss",
    "think",
    "think_response",
)
MOST_SPECULATIVE_TOKENS = 16
KERNELS = ("auto", "torch", "amx", "avx512_bf16", "avx512_vnni", "avx512", "avx2", "portable")


@dataclass(frozen=True)
class ReplicaSettings:
    """The model of one replica, its address and its limits."""

    model_path: Path
    """A folder with config.json, safetensors and a tokenizer."""
    served_name: str
    """The name that clients write as `model`."""
    host: str
    """The address to bind; empty: all addresses, IPv6 and IPv4."""
    port: int
    """The port of the API, /readyz and /metrics; 0: any free one."""
    live_port: int
    """The port of /livez, which the supervisor answers; 0: any free one."""
    max_model_length: int | None
    """Tokens of prompt and output together; None: as many as the model and the memory allow."""
    max_sequences: int
    """Sequences computed at the same time. Further ones wait."""
    max_batched_tokens: int
    """Tokens computed in one step. Longer prompts take several steps."""
    target_inter_token_seconds: float | None
    """How long a step with decodes should take at most; None: as long as it takes."""
    kv_cache_bytes: int | None
    """Memory for the KV cache; None: the executor measures the free memory."""
    device: str
    """One of DEVICES."""
    dtype: str
    """One of DTYPES; auto is the type of the model's files."""
    kernels: str
    """One of KERNELS: the kernels on a CPU."""
    weights: str
    """One of WEIGHTS: as in the files, or rounded while they are loaded."""
    kv_cache: str
    """One of KV_CACHES: keys and values in the model's type, or rounded as they are written."""
    tensor_parallel: int
    """Workers that share the model, each on a device of its own; 1: the engine computes itself."""
    speculative_tokens: int
    """The most tokens that a step guesses of each sequence, and verifies; 0: none."""
    tool_parser: str
    """One of TOOL_PARSERS: how the model writes tool calls."""
    reasoning_parser: str
    """One of REASONING_PARSERS: how the model writes its reasoning."""
    takes_author_defaults: bool
    """Whether the sampling in generation_config.json is the default of requests."""
    drain_seconds: float
    """How long streams in flight may continue after SIGTERM."""
    request_head_seconds: float
    """How long a client may take to send a request's head."""
    body_memory: int
    """Bytes of all request bodies in memory at the same time."""
    request_body_seconds: float
    """How long a client may take to send a request's body."""
    write_stall_seconds: float
    """How long a client may read nothing of an answer that waits for it."""
    keep_alive_seconds: int
    """How long a connection may be idle between two requests."""
    sse_keep_alive_seconds: float
    """How long a stream may be silent before it gets a comment."""
    startup_deadline_seconds: float
    """/livez fails when loading or warming up takes longer."""
    step_deadline_seconds: float
    """/livez fails when no layer of a step ends for longer. An idle engine writes a heartbeat each second."""
    allowed_origins: tuple[str, ...]
    """Origins of web pages that may call the API."""
    service: str | None
    """The replica's service, as `<namespace>/<name>`, if its clients need a token of the gateway."""
    gateway_keys: tuple[str, ...]
    """Public keys that verify such tokens; empty: clients need none."""
    is_demo: bool
    """Whether to print an example request."""

    def to_json(self) -> str:
        """Return the settings as one argument for a process of this replica."""
        return json.dumps(dataclasses.asdict(self) | {"model_path": str(self.model_path)})

    @classmethod
    def from_json(cls, text: str) -> "ReplicaSettings":
        """Return the settings that `to_json` wrote."""
        values = json.loads(text)
        lists = {name: tuple(values[name]) for name in ("allowed_origins", "gateway_keys")}
        return cls(**(values | {"model_path": Path(values["model_path"])} | lists))


def has_gpu(devices: Path = Path("/dev")) -> bool:
    """Whether there is a GPU's device file, or WSL's. This is enough to choose defaults."""
    return any(devices.glob("nvidia[0-9]*")) or (devices / "dxg").exists()
