"""The flags of `python -m e2e.cluster`, parsed before anything is started or downloaded."""

import argparse
from pathlib import Path

from e2e.cluster.nodes.errors import SettingsError
from e2e.cluster.nodes.settings import parse_node
from e2e.cluster.settings import USUAL_STATE

API_PORT = 6443
PROMETHEUS_PORT = 9090
NODE = "name=NAME,gpus=N,accelerators=N,cpu=N,memory=Q"


def build_parser(description: str | None) -> argparse.ArgumentParser:
    """The command's flags."""
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description=description)
    parser.add_argument("--state-dir", type=Path, default=USUAL_STATE, help="the cluster's files (.millrace)")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start the cluster, install Millrace, serve an example")
    up.add_argument("--api-port", type=read_port, help=f"the API server's port on 127.0.0.1 ({API_PORT})")
    up.add_argument("--prometheus-port", type=read_port, help=f"Prometheus' port there ({PROMETHEUS_PORT})")
    up.add_argument("--node", type=read_node, action="append", metavar=NODE, help="a Node; repeatable")
    up.add_argument("--bare", action="store_true", help="the cluster alone, without Millrace on it")
    up.add_argument("--only-checks", action="store_true", help="say whether it could start; start nothing")
    commands.add_parser("down", help="end everything that up started")
    commands.add_parser("status", help="say what runs, and where")
    return parser


def read_port(text: str) -> int:
    """Parse a port. Raises ArgumentTypeError."""
    if not (text.isdecimal() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text} is no port; write one from 1 to 65535")
    return int(text)


def read_node(text: str) -> str:
    """Return the words of a Node, once they can be parsed. Raises ArgumentTypeError."""
    try:
        parse_node(text)
    except SettingsError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text
