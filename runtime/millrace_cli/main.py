"""`millrace SUB-COMMAND …`: each sub-command's `main(argv)` lives beside what it runs."""

import importlib
import sys
from dataclasses import dataclass

from millrace_runtime.process import paused_collection


@dataclass(frozen=True)
class SubCommand:
    """A sub-command's module, and the extra that installs its libraries."""

    module: str
    extra: str
    summary: str


SUB_COMMANDS = {
    "serve": SubCommand("millrace_runtime.replica.command", "runtime", "run one replica of a model"),
    "operator": SubCommand("millrace_operator.app.command", "operator", "run the Kubernetes operator"),
    "gateway": SubCommand("millrace_gateway.command", "operator", "run the front door of the services"),
    "fetch": SubCommand("millrace_fetch.cli.command", "fetch", "fetch a model into a folder"),
    "node-cache": SubCommand("millrace_node_cache.command", "operator", "keep models on this node's disk"),
    "size": SubCommand(
        "millrace_fetch.cli.size", "fetch", "show how much of a device's memory a model needs"
    ),
}


def main() -> None:
    """Run the sub-command that the first argument names. Exits with its status; 1 for an unknown name."""
    name, argv = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("--help", [])
    if name in ("--help", "-h", "help"):
        print(usage())  # noqa: T201  the answer to --help
        sys.exit(0)
    if name not in SUB_COMMANDS:
        sys.exit(f"millrace: no sub-command '{name}'; it is one of: {', '.join(SUB_COMMANDS)}")
    sys.exit(run(SUB_COMMANDS[name], argv))


def usage() -> str:
    """Return the text of `millrace --help`."""
    width = max(map(len, SUB_COMMANDS))
    rows = [f"  {name:<{width}}  {sub.summary}" for name, sub in SUB_COMMANDS.items()]
    return "\n".join(["usage: millrace SUB-COMMAND …   (millrace SUB-COMMAND --help)", "", *rows])


def run(sub_command: SubCommand, argv: list[str]) -> int:
    """Load and run a sub-command, and return its exit status."""
    try:
        with paused_collection():
            module = importlib.import_module(sub_command.module)
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("millrace"):
            raise
        sys.exit(
            f"millrace: {error.name} is not installed; write: pip install 'millrace[{sub_command.extra}]'"
        )
    status: int = module.main(argv)
    return status


if __name__ == "__main__":
    main()
