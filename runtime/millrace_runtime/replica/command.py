"""`millrace serve`: check the flags, the group of workers and the model's folder, then run a replica."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from millrace_runtime import contract
from millrace_runtime.process import say
from millrace_runtime.replica.errors import PortTaken, SettingError
from millrace_runtime.replica.flags import parse_settings
from millrace_runtime.replica.supervisor import supervise

EXIT_PORT_TAKEN = 69  # EX_UNAVAILABLE
ENV_RANK: Final = "RANK"
ENV_WORLD_SIZE: Final = "WORLD_SIZE"
ENV_ADDRESS: Final = "MASTER_ADDR"
ENV_PORT: Final = "MASTER_PORT"
_ADVICE = "--model, or spec.model.uri of a service, must name a folder with config.json and *.safetensors"


def main(argv: list[str]) -> int:
    """Serve until the replica ends, and return its exit status."""
    try:
        settings = parse_settings(argv)
        check_group(os.environ, settings.tensor_parallel)
    except SettingError as error:
        say(str(error))
        return contract.EXIT_BAD_USAGE
    if not (settings.model_path / "config.json").is_file():
        say(f"no model at {settings.model_path}: {_find_missing(settings.model_path)}")
        return contract.EXIT_BAD_MODEL
    try:
        return supervise(settings)
    except PortTaken as error:
        say(str(error))
        return EXIT_PORT_TAKEN


def _find_missing(path: Path) -> str:
    """Return why a path is no model's folder, and the remedy."""
    if not path.exists():
        return f"there is nothing at that path; {_ADVICE}"
    if not path.is_dir():
        return f"that is a file; {_ADVICE}"
    return f"the folder has no config.json; {_ADVICE}"


def check_group(environment: Mapping[str, str], num_workers: int) -> None:
    """Raise SettingError if the environment names more workers than the pod has: no executor spans pods yet.

    Raise it for a value that is no number, too.
    """
    size = _read_number(environment, ENV_WORLD_SIZE, num_workers)
    if size <= num_workers:
        return  # ignore the others: a Service "master" sets MASTER_PORT too
    rank, port = _read_number(environment, ENV_RANK, 0), _read_number(environment, ENV_PORT, 0)
    own = "1 worker" if num_workers == 1 else f"{num_workers} workers"
    meeting = f"{environment.get(ENV_ADDRESS) or '?'}:{port or '?'}"
    raise SettingError(
        f"{ENV_WORLD_SIZE} is {size} ({ENV_RANK} {rank}, meeting at {meeting}) and this pod has {own}:"
        f" groups over several nodes are not supported yet; unset {ENV_WORLD_SIZE}, and use one node with"
        " enough memory for the model"
    )


def _read_number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not text.isdecimal():
        raise SettingError(f"{name} is {text!r}: write a whole number, or unset it")
    return int(text)
