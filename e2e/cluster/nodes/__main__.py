"""`python -m e2e.cluster.nodes`: process nodes for a cluster, until SIGTERM."""

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

from e2e.cluster.nodes.agent import run_agent
from e2e.cluster.nodes.errors import NodeError, SettingsError
from e2e.cluster.nodes.logs_server import CertificateFiles
from e2e.cluster.nodes.sandbox import check_sandbox
from e2e.cluster.nodes.settings import Settings, parse_node


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's flags."""
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster.nodes", description=__doc__)
    parser.add_argument(
        "--kubeconfig", type=Path, required=True, help="the API server and an administrator of it"
    )
    parser.add_argument("--state-dir", type=Path, required=True, help="pods' files, logs and claims' volumes")
    parser.add_argument(
        "--node",
        action="append",
        required=True,
        metavar="name=NAME,gpus=N,accelerators=N,cpu=N,memory=Q",
        help="a Node; repeatable",
    )
    parser.add_argument(
        "--images",
        action="append",
        type=Path,
        default=[],
        help="images/ of a further checkout, which pods may see; repeatable",
    )
    parser.add_argument("--hide", action="append", type=Path, help="a folder no pod may see; repeatable")
    parser.add_argument("--kubelet-address", default="127.0.0.2", help="where the API server asks for logs")
    parser.add_argument("--tls-certificate", type=Path, required=True, help="PEM file for that port")
    parser.add_argument("--tls-key", type=Path, required=True, help="the certificate's key")
    return parser


def parse_settings(arguments: argparse.Namespace) -> Settings:
    """Return the settings of a command line. Raises SettingsError, which says what to write."""
    nodes = tuple(parse_node(text) for text in arguments.node)
    if len({node.name for node in nodes}) < len(nodes):
        raise SettingsError("two --node have the same name")
    return Settings(
        kubeconfig=arguments.kubeconfig,
        state_dir=arguments.state_dir,
        nodes=nodes,
        further_images=tuple(folder.resolve() for folder in arguments.images),
        hidden=tuple(folder.resolve() for folder in arguments.hide or ()),
        kubelet_address=arguments.kubelet_address,
    )


async def run(arguments: argparse.Namespace) -> None:
    """Run the nodes until SIGTERM or SIGINT."""
    settings = parse_settings(arguments)
    settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    await check_sandbox()
    files = CertificateFiles(arguments.tls_certificate, arguments.tls_key)
    agent = asyncio.create_task(run_agent(settings, files))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, agent.cancel)
    await agent


def main(argv: list[str]) -> int:
    """Run the nodes. Returns 0 after SIGTERM, else 1 with one line that says what to do."""
    arguments = build_parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if sys.version_info < (3, 12):  # later versions choose it themselves; the other is a thread a container
        asyncio.set_child_watcher(asyncio.PidfdChildWatcher())
    try:
        asyncio.run(run(arguments))
    except asyncio.CancelledError:
        return 0
    except NodeError as error:
        print(f"process nodes: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
