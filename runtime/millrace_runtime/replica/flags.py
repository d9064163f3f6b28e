"""The flags of `millrace serve`, each of them checked: from arguments to settings."""

import argparse
import os
from pathlib import Path
from typing import NoReturn

from millrace_fit import settings as fit
from millrace_fit.settings import KV_CACHES, MAX_BATCHED_TOKENS, MAX_SEQUENCES, MODEL_TYPE, WEIGHTS
from millrace_runtime import contract
from millrace_runtime.api.settings import LEAST_KEEP_ALIVE_SECONDS, ApiSettings, ConnectionLimits
from millrace_runtime.listener import read_bind_address
from millrace_runtime.replica.errors import SettingError
from millrace_runtime.replica.flag_types import parse_bytes, parse_name, parse_origins, seconds, whole_number
from millrace_runtime.replica.gateway_flags import add_gateway_flags, check_gateway_flags
from millrace_runtime.replica.settings import (
    DEMO_PATH,
    DEVICES,
    DTYPES,
    KERNELS,
    MOST_SPECULATIVE_TOKENS,
    REASONING_PARSERS,
    TOOL_PARSERS,
    ReplicaSettings,
    has_gpu,
)


class _Parser(argparse.ArgumentParser):
    """Raises SettingError instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise SettingError(f"{message}; see: {self.prog} --help")


def parse_settings(argv: list[str]) -> ReplicaSettings:
    """Return the settings of the flags. Raises SettingError. Exits with status 0 on --help."""
    values = _build_parser().parse_args(argv)
    asked = fit.Settings(
        device="cuda" if values.device == "cuda" or (values.device == "auto" and has_gpu()) else "cpu",
        max_sequences=values.max_sequences,
        max_batched_tokens=values.max_batched_tokens,
    )
    max_sequences, max_batched_tokens = asked.num_sequences, asked.num_batched_tokens
    if max_batched_tokens < max_sequences:
        raise SettingError(
            f"--max-batched-tokens is {max_batched_tokens} and --max-sequences {max_sequences}: each sequence"
            f" computes a token a step, so make --max-batched-tokens at least {max_sequences}"
        )
    if values.port == values.live_port != 0:
        raise SettingError(f"--port and --live-port have the same value {values.port}; use two ports")
    check_gateway_flags(values)
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
        target_inter_token_seconds=values.target_inter_token_seconds,
        kv_cache_bytes=values.kv_cache_memory,
        device=values.device,
        dtype=values.dtype,
        kernels=values.kernels,
        weights=values.weights,
        kv_cache=values.kv_cache,
        tensor_parallel=values.tensor_parallel,
        speculative_tokens=values.speculative_tokens,
        tool_parser=values.tool_parser,
        reasoning_parser=values.reasoning_parser,
        takes_author_defaults=values.generation_config == "auto",
        drain_seconds=values.drain_seconds,
        request_head_seconds=values.request_head_seconds,
        body_memory=values.body_memory,
        request_body_seconds=values.request_body_seconds,
        write_stall_seconds=values.write_stall_seconds,
        keep_alive_seconds=values.keep_alive_seconds,
        sse_keep_alive_seconds=values.sse_keep_alive_seconds,
        startup_deadline_seconds=values.startup_deadline_seconds,
        step_deadline_seconds=values.step_deadline_seconds,
        allowed_origins=values.allowed_origins,
        service=values.service,
        gateway_keys=tuple(values.gateway_keys),
        is_demo=values.demo,
    )


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="millrace serve",
        allow_abbrev=False,
        description="Serve one model over HTTP in the OpenAI dialect, until SIGTERM.",
    )
    _add_model_flags(parser)
    _add_address_flags(parser)
    _add_engine_flags(parser)
    _add_client_flags(parser)
    add_gateway_flags(parser)
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
        type=parse_name,
        metavar="NAME",
        help="the model's name in requests (default: the folder's name)",
    )
    parser.add_argument(
        "--tool-parser",
        choices=TOOL_PARSERS,
        default="auto",
        help="how the model writes tool calls; auto: as its chat template says (default: %(default)s)",
    )
    parser.add_argument(
        "--reasoning-parser",
        choices=REASONING_PARSERS,
        default="auto",
        help="how the model writes its reasoning; auto: as its chat template says (default: %(default)s)",
    )
    parser.add_argument(
        "--generation-config",
        choices=("auto", "none"),
        default="auto",
        help="auto: generation_config.json gives the sampling of a request that says nothing about it"
        " (default: %(default)s)",
    )


def _add_address_flags(parser: argparse.ArgumentParser) -> None:
    port = whole_number(0, 65535)
    parser.add_argument(
        "--host",
        default=read_bind_address(os.environ),
        help=f"address to bind (default: ${contract.ENV_BIND_ADDRESS}, else all addresses, IPv6 and IPv4)",
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
    cpu, gpu = MAX_SEQUENCES.values()
    parser.add_argument(
        contract.FLAG_MAX_MODEL_LENGTH,
        type=whole_number(2, 2**24),
        metavar="TOKENS",
        help="most tokens of prompt and output together (default: as many as model and memory allow)",
    )
    parser.add_argument(
        contract.FLAG_MAX_SEQUENCES,
        type=whole_number(1, 4096),
        metavar="N",
        help=f"most sequences computed at the same time; others wait (default: {cpu} on CPUs, {gpu} on GPUs)",
    )
    cpu, gpu = MAX_BATCHED_TOKENS.values()
    parser.add_argument(
        contract.FLAG_MAX_BATCHED_TOKENS,
        type=whole_number(1, 2**20),
        metavar="TOKENS",
        help=f"most tokens of one step, at least --max-sequences (default: {cpu} on CPUs, {gpu} on GPUs)",
    )
    parser.add_argument(
        contract.FLAG_TARGET_INTER_TOKEN,
        type=seconds(contract.INTER_TOKEN_SECONDS[0]),
        metavar="S",
        help="while sequences generate, limit the prompt tokens of a step so that it stays this short"
        " (default: as many tokens as a step may have)",
    )
    parser.add_argument(
        "--kv-cache-memory",
        type=parse_bytes,
        metavar="BYTES",
        help="memory for each worker's KV cache, such as 512Mi (default: a share of the free memory)",
    )
    parser.add_argument(
        contract.FLAG_DEVICE,
        choices=DEVICES,
        default="auto",
        help="the device that computes (default: a GPU if there is one)",
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default="auto",
        help="type of weights and KV cache (default: the checkpoint's own)",
    )
    parser.add_argument(
        "--kernels",
        choices=KERNELS,
        default="auto",
        help="kernels on a CPU (default: the fastest that it supports; the log names them)",
    )
    parser.add_argument(
        contract.FLAG_WEIGHTS,
        choices=WEIGHTS,
        default=WEIGHTS[0],
        help="round the matrices to 8 or 4 bits while loading, on CPUs (default: %(default)s)",
    )
    parser.add_argument(
        contract.FLAG_KV_CACHE,
        choices=KV_CACHES,
        default=MODEL_TYPE,
        help="keep keys and values in 8 bits, which holds twice the tokens: Fp8 on GPUs, Int8 anywhere"
        " (default: %(default)s, in the type of --dtype)",
    )
    parser.add_argument(
        contract.FLAG_TENSOR_PARALLEL,
        type=whole_number(1, 64),
        default=1,
        metavar="N",
        help="workers that share the model, each with a GPU or a part of the cores (default: 1)",
    )
    parser.add_argument(
        contract.FLAG_SPECULATIVE_TOKENS,
        type=whole_number(0, MOST_SPECULATIVE_TOKENS),
        default=0,
        metavar="N",
        help="most tokens that a step guesses of each sequence from its own text, and verifies; the text"
        " stays the same (default: 0, none)",
    )


def _add_client_flags(parser: argparse.ArgumentParser) -> None:
    limits = ConnectionLimits
    sending = "how long a client may take to send a request's"
    _add_seconds(parser, "--request-head-seconds", 0.1, limits.head_seconds, f"{sending} head")
    _add_seconds(parser, "--request-body-seconds", 0.1, ApiSettings.body_seconds, f"{sending} body")
    text = "how long a client may read nothing of an answer before it is disconnected"
    _add_seconds(parser, "--write-stall-seconds", 0.1, limits.write_stall_seconds, text)
    parser.add_argument(
        "--body-memory",
        type=parse_bytes,
        default=ApiSettings.max_body_memory,
        metavar="BYTES",
        help="memory for all request bodies at the same time"
        f" (default: {ApiSettings.max_body_memory >> 20}Mi)",
    )
    parser.add_argument(
        "--keep-alive-seconds",
        type=whole_number(LEAST_KEEP_ALIVE_SECONDS, 86400),
        default=ConnectionLimits.keep_alive_seconds,
        metavar="S",
        help="how long a connection may be idle between two requests (default: %(default)s)",
    )
    parser.add_argument(
        "--allowed-origins",
        type=parse_origins,
        default=(),
        metavar="JSON",
        help='origins of web pages that may call the API, as a JSON list; "*" allows all (default: none)',
    )
    text = "how long a stream may be silent before it gets a comment"
    _add_seconds(parser, "--sse-keep-alive-seconds", 1, ApiSettings.sse_keep_alive_seconds, text)


def _add_life_flags(parser: argparse.ArgumentParser) -> None:
    text = "how long streams may continue after SIGTERM, or without a text worker"
    _add_seconds(parser, contract.FLAG_DRAIN_SECONDS, 0, 600.0, text)
    text = "/livez fails when loading takes longer"
    _add_seconds(parser, "--startup-deadline-seconds", 1, 1800.0, text)
    text = "/livez fails when no layer of a step ends for longer"
    _add_seconds(parser, "--step-deadline-seconds", 2, 30.0, text)


def _add_seconds(parser: argparse.ArgumentParser, flag: str, least: float, default: float, text: str) -> None:
    parser.add_argument(
        flag, type=seconds(least), default=default, metavar="S", help=f"{text} (default: %(default)g)"
    )
