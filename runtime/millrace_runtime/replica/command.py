"""`millrace serve`: check the settings, then supervise a replica."""

import os
from pathlib import Path

from millrace_runtime import contract
from millrace_runtime.replica.console import say
from millrace_runtime.replica.errors import PortTaken, SettingError
from millrace_runtime.replica.settings import parse_settings
from millrace_runtime.replica.supervisor import supervise
from millrace_runtime.replica.world import read_world

EXIT_PORT_TAKEN = 69  # EX_UNAVAILABLE


def main(argv: list[str]) -> int:
    """Serve until the replica ends, and return its exit status."""
    try:
        settings = parse_settings(argv)
        read_world(os.environ, settings.tensor_parallel)
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


_ADVICE = "--model, or spec.model.uri of a service, is to name a folder with config.json and *.safetensors"


def _find_missing(path: Path) -> str:
    """Return why a path is no model's folder, and what to do."""
    if not path.exists():
        return f"there is nothing at that path; {_ADVICE}"
    if not path.is_dir():
        return f"that is a file; {_ADVICE}"
    return f"the folder has no config.json; {_ADVICE}"
