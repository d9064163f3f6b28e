"""The settings of `millrace serve`: flags, each checked, parsed once."""

import argparse
import dataclasses
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from millrace_runtime import contract
from millrace_runtime.replica.errors import SettingError

DEMO_NAME = "stories"
DEMO_PATH = Path(__file__).parent.parent / "demo" / DEMO_NAME
DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16")
WEIGHTS = ("FromCheckpoint", "Int8", "Int4")

_BYTE_SUFFIXES = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_MAX_SEQUENCES = {"cpu": 32, "cuda": 256}
_MAX_BATCHED_TOKENS = {"cpu": 512, "cuda": 4096}


@dataclass(frozen=True)
class ReplicaSettings:
    """What one replica serves, where, and within which bounds."""

    model_path: Path
    """A folder with config.json, safetensors and a tokenizer."""
    served_name: str
    """What clients write as `model`."""
    host: str
    """The address to bind."""
    port: int
    """Of the API, /readyz and /metrics; 0 takes a free one."""
    live_port: int
    """Of /livez, which the supervisor answers; 0 takes a free one."""
    max_model_length: int | None
    """Tokens of prompt and output together; None: what the model and the memory allow."""
    max_sequences: int
    """Sequences computed at the same time; further ones wait."""
    max_batched_tokens: int
    """Tokens computed in one step; longer prompts take several."""
    kv_cache_bytes: int | None
    """Memory for the KV cache; None: the executor measures what is free."""
    device: str
    """One of DEVICES."""
    dtype: str
    """One of DTYPES; auto is what the model's files have and the device is good at."""
    weights: str
    """One of WEIGHTS: kept as the files have them, or rounded while they are loaded."""
    drain_seconds: float
    """How long streams in flight may go on after SIGTERM."""
    startup_deadline_seconds: float
    """/livez fails when loading or warming up takes longer."""
    step_deadline_seconds: float
    """/livez fails when no step ends for longer; an idle engine ticks every second."""
    is_demo: bool
    """Whether to print how to try it."""

    def to_json(self) -> str:
        """Return the settings as one argument for a process of this replica."""
        return json.dumps(dataclasses.asdict(self) | {"model_path": str(self.model_path)})

    @classmethod
    def from_json(cls, text: str) -> "ReplicaSettings":
        """Return the settings that `to_json` wrote."""
        values = json.loads(text)
        return cls(**(values | {"model_path": Path(values["model_path"])}))


class _Parser(argparse.ArgumentParser):
    """Raises instead of exiting, and takes no abbreviated flags."""

    def error(self, message: str) -> NoReturn:
        raise SettingError(f"{message}; see: {self.prog} --help")


def parse_settings(argv: list[str]) -> ReplicaSettings:
    """Return the settings that the flags say. Raises SettingError; exits 0 on --help."""
    values = _build_parser().parse_args(argv)
    kind = "cuda" if values.device == "cuda" or (values.device == "auto" and has_gpu()) else "cpu"
    max_sequences = values.max_sequences or _MAX_SEQUENCES[kind]
    max_batched_tokens = values.max_batched_tokens or max(_MAX_BATCHED_TOKENS[kind], max_sequences)
    if max_batched_tokens < max_sequences:
        raise SettingError(
            f"--max-batched-tokens is {max_batched_tokens} and --max-sequences {max_sequences}: each sequence"
            f" computes a token a step, so make --max-batched-tokens at least {max_sequences}"
        )
    if values.port == values.live_port != 0:
        raise SettingError(f"--port and --live-port are both {values.port}; give each a port of its own")
    model_path = (DEMO_PATH if values.demo else values.model).absolute()
    return ReplicaSettings(
        model_path=model_path,
        served_name=values.served_name or model_path.name,
        host=values.host,
        port=values.port,
        live_port=values.live_port,
        max_model_length=values.max_model_length,
        max_sequences=max_sequences,
        max_batched_tokens=max_batched_tokens,
        kv_cache_bytes=values.kv_cache_memory,
        device=values.device,
        dtype=values.dtype,
        weights=values.weights,
        drain_seconds=values.drain_seconds,
        startup_deadline_seconds=values.startup_deadline_seconds,
        step_deadline_seconds=values.step_deadline_seconds,
        is_demo=values.demo,
    )


def has_gpu(devices: Path = Path("/dev")) -> bool:
    """Whether a GPU's device file is here (WSL's included): enough to choose defaults by."""
    return any(devices.glob("nvidia[0-9]*")) or (devices / "dxg").exists()


def parse_bytes(text: str) -> int:
    """Return the bytes that a Kubernetes quantity such as 512Mi means."""
    match = re.fullmatch(r"(\d+)(Ki|Mi|Gi|Ti|)", text)
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(
            f"'{text}' is no amount of memory; write bytes or a number with Ki, Mi, Gi or Ti, such as 512Mi"
        )
    return int(match[1]) * _BYTE_SUFFIXES[match[2]]


def _whole_number(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"'{text}' is refused; write a whole number, {least} to {most}")
        return int(text)

    return parse


def _seconds(least: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= 86400:
            raise argparse.ArgumentTypeError(f"'{text}' is refused; write seconds, {least:g} to 86400")
        return value

    return parse


def _name(text: str) -> str:
    if not re.fullmatch(r"[\w.:/@+-]{1,200}", text, re.ASCII):
        raise argparse.ArgumentTypeError(
            f"'{text}' is no name; write 1 to 200 letters, digits or any of . : / @ + - _"
        )
    return text


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="millrace serve",
        allow_abbrev=False,
        description="Serve one model over HTTP in the OpenAI dialect, until SIGTERM.",
    )
    _add_model_flags(parser)
    _add_address_flags(parser)
    _add_engine_flags(parser)
    _add_life_flags(parser)
    return parser


def _add_model_flags(parser: argparse.ArgumentParser) -> None:
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument(
        contract.FLAG_MODEL,
        type=Path,
        metavar="PATH",
        help="folder with config.json, *.safetensors and tokenizer.json",
    )
    model.add_argument("--demo", action="store_true", help="serve the small model that comes with Millrace")
    parser.add_argument(
        contract.FLAG_SERVED_NAME,
        type=_name,
        metavar="NAME",
        help="what clients write as model (default: the folder's name)",
    )


def _add_address_flags(parser: argparse.ArgumentParser) -> None:
    port = _whole_number(0, 65535)
    parser.add_argument(
        "--host",
        default=os.environ.get(contract.ENV_BIND_ADDRESS) or contract.DEFAULT_BIND_ADDRESS,
        help=f"address to bind (default: ${contract.ENV_BIND_ADDRESS}, else all interfaces)",
    )
    parser.add_argument(
        "--port",
        type=port,
        default=contract.PORT_HTTP,
        help="port of the API; 0 takes a free one (default: %(default)s)",
    )
    parser.add_argument(
        "--live-port",
        type=port,
        default=contract.PORT_LIVE,
        help="port of /livez; 0 takes a free one (default: %(default)s)",
    )


def _add_engine_flags(parser: argparse.ArgumentParser) -> None:
    cpu, gpu = _MAX_SEQUENCES.values()
    parser.add_argument(
        contract.FLAG_MAX_MODEL_LENGTH,
        type=_whole_number(2, 2**24),
        metavar="TOKENS",
        help="longest prompt and output together (default: what model and memory allow)",
    )
    parser.add_argument(
        contract.FLAG_MAX_SEQUENCES,
        type=_whole_number(1, 4096),
        metavar="N",
        help=f"sequences computed at the same time; others wait (default: {cpu} on CPUs, {gpu} on GPUs)",
    )
    cpu, gpu = _MAX_BATCHED_TOKENS.values()
    parser.add_argument(
        contract.FLAG_MAX_BATCHED_TOKENS,
        type=_whole_number(1, 2**20),
        metavar="TOKENS",
        help=f"tokens computed in one step, at least --max-sequences (default: {cpu} on CPUs, {gpu} on GPUs)",
    )
    parser.add_argument(
        "--kv-cache-memory",
        type=parse_bytes,
        metavar="BYTES",
        help="memory for the KV cache, such as 512Mi (default: a share of what is free)",
    )
    parser.add_argument(
        "--device", choices=DEVICES, default="auto", help="(default: a GPU where there is one)"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="of weights and KV (default: auto)")
    parser.add_argument(
        contract.FLAG_WEIGHTS,
        choices=WEIGHTS,
        default=WEIGHTS[0],
        help="round matrices to 8 or 4 bits while loading them, on CPUs (default: %(default)s)",
    )


def _add_life_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--drain-seconds",
        type=_seconds(0),
        default=600.0,
        metavar="S",
        help="how long streams in flight may go on after SIGTERM (default: %(default)g)",
    )
    parser.add_argument(
        "--startup-deadline-seconds",
        type=_seconds(1),
        default=1800.0,
        metavar="S",
        help="/livez fails when loading takes longer (default: %(default)g)",
    )
    parser.add_argument(
        "--step-deadline-seconds",
        type=_seconds(2),
        default=60.0,
        metavar="S",
        help="/livez fails when no step ends for longer; an idle engine ticks every second"
        " (default: %(default)g)",
    )
