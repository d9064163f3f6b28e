"""`kubectl millrace key create`, `list` and `revoke`: the keys with which clients use services."""

import argparse
import secrets
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace

from millrace_kubectl.errors import PluginError
from millrace_kubectl.key_secret import (
    FIGURES,
    KEY_BYTES,
    MOST_KEYS,
    Client,
    change_client,
    is_client_name,
    is_model,
    make_key,
    read_client,
)
from millrace_kubectl.kubectl import Obj, Secrets, Services
from millrace_kubectl.wording import align
from millrace_runtime import contract

DESCRIPTION = """Make, list and revoke the keys of a Secret, each of a client. A service whose
spec.access.authentication names the Secret answers only these clients. It needs the right to get, create and
patch secrets."""
CREATE_DESCRIPTION = """Make a key for a client, and print it, for the only time. The Secret has its hash. For
a client that has a key it makes a second one: give it to the client, then `revoke --old`. New models and
limits replace the client's earlier ones."""
REVOKE_DESCRIPTION = """Remove a client with all its keys, or with --old all its keys but the newest."""
TITLES = ("SECRET", "CLIENT", "KEYS", "MODELS", "LIMITS")
UNREADABLE = "unreadable: revoke it"
_SHORT = dict(zip(FIGURES, ("requests/min", "tokens/min", "at once"), strict=True))


def add_parsers(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command with its three actions."""
    parser = commands.add_parser("key", help="make, list and revoke clients' keys", description=DESCRIPTION)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    create = actions.add_parser("create", help="make a key, and print it", description=CREATE_DESCRIPTION)
    _add_names(create)
    _add_bounds(create)
    create.set_defaults(run=run_create)
    shown = actions.add_parser("list", help="list clients, models and limits")
    shown.add_argument("secret", metavar="SECRET", nargs="?", help="that Secret alone")
    shown.set_defaults(run=run_list)
    revoke = actions.add_parser("revoke", help="end a client's keys", description=REVOKE_DESCRIPTION)
    _add_names(revoke)
    revoke.add_argument("--old", action="store_true", help="keep the newest key")
    revoke.set_defaults(run=run_revoke)


def _add_names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("secret", metavar="SECRET", help="the Secret with the keys")
    parser.add_argument("client", metavar="CLIENT", type=_parse_client, help="the client's name")


def _add_bounds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models",
        type=_parse_models,
        metavar="NAMES",
        help="the only services that it may use, such as chat,code; in the platform's Secret team-a/chat or "
        "team-a/* (default: all that name the Secret)",
    )
    for flag, what in zip(
        ("--requests-per-minute", "--tokens-per-minute", "--concurrency"),
        ("requests that begin in a minute", "tokens in a minute", "requests at the same time"),
        strict=True,
    ):
        parser.add_argument(
            flag, type=_parse_figure, metavar="N", help=f"{what}, instead of the service's limits per Key"
        )


def _parse_client(text: str) -> str:
    if not is_client_name(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} names no client; write up to 63 letters, digits, '-', '_' and '.', such as team-a"
        )
    return text


def _parse_models(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if not is_model(name):
            raise argparse.ArgumentTypeError(f"{name!r} names no service; write for example chat or team-a/*")
    return names


def _parse_figure(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 12 and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no limit; write a whole number from 1")
    return int(text)


def run_create(arguments: argparse.Namespace, services: Services, now: float) -> str:  # noqa: ARG001  as its siblings
    """Make a key and return it. The note on stderr says that nobody can read it again. Raises PluginError."""
    key, secret, client = make_key(secrets.token_bytes(KEY_BYTES)), arguments.secret, arguments.client
    limits = _read_limits(arguments)

    def add(found: Client | None) -> Client:
        if found is not None and len(found.hashes) >= MOST_KEYS:
            raise PluginError(
                f"client {client} has {len(found.hashes)} keys: end the old one first, by "
                f"kubectl millrace key revoke {secret} {client} --old"
            )
        known = found or Client()
        models = known.models if arguments.models is None else arguments.models
        return replace(known, models=models, limits=limits or known.limits).add_key(key)

    before = change_client(Secrets(services.flags), secret, client, add)
    what = "a second key" if before else "the key"
    sys.stderr.write(f"{what} of client {client}, shown once, as Secret {secret} has only its hash:\n")
    return key


def _read_limits(arguments: argparse.Namespace) -> tuple[Mapping[str, int], ...] | None:
    figures = (arguments.requests_per_minute, arguments.tokens_per_minute, arguments.concurrency)
    found = {name: figure for name, figure in zip(FIGURES, figures, strict=True) if figure is not None}
    return (found,) if found else None


def run_revoke(arguments: argparse.Namespace, services: Services, now: float) -> str:  # noqa: ARG001  as its siblings
    """End keys, and return what holds now. Raises PluginError."""
    secret, client = arguments.secret, arguments.client

    def end(found: Client | None) -> Client | None:
        if found is None:
            raise PluginError(f"Secret {secret} has no client {client}: kubectl millrace key list shows all")
        return found.keep_newest() if arguments.old else None

    before = change_client(Secrets(services.flags), secret, client, end, is_removal=not arguments.old)
    if not arguments.old:
        return f"client {client} of Secret {secret} is revoked: gateways refuse its keys within seconds"
    if before is not None and len(before.hashes) == 1:
        return f"client {client} of Secret {secret} has one key alone, which stays"
    return f"client {client} of Secret {secret} has its newest key alone"


def run_list(arguments: argparse.Namespace, services: Services, now: float) -> str:  # noqa: ARG001  as its siblings
    """Return a table of the clients, without their hashes. Raises PluginError."""
    found = Secrets(services.flags).list_labelled(contract.LABEL_API_KEYS)
    rows = [row for secret in found for row in _list_rows(secret) if arguments.secret in (None, row[0])]
    if not rows:
        where = "this namespace" if arguments.secret is None else f"Secret {arguments.secret}"
        return f"no client has a key in {where}: kubectl millrace key create makes one"
    return "\n".join(align([TITLES, *rows]))


def _list_rows(secret: Obj) -> Iterator[tuple[str, ...]]:
    name = secret["metadata"]["name"]
    for client, value in sorted((secret.get("data") or {}).items()):
        try:
            found = read_client(client, value)
        except PluginError:
            yield name, client, "-", "-", UNREADABLE
        else:
            models = "all" if found.models is None else ", ".join(found.models) or "none"
            yield name, client, str(len(found.hashes)), models, _describe_limits(found)


def _describe_limits(client: Client) -> str:
    if client.limits is None:
        return "the service's"
    pairs = ((limit[name], _SHORT[name]) for limit in client.limits for name in FIGURES if name in limit)
    return ", ".join(f"{figure} {what}" for figure, what in pairs) or "none"
