"""The flags of `millrace serve` about the gateway's tokens, which the operator renders into a pod."""

import argparse
import re

from millrace_runtime import contract
from millrace_runtime.replica.errors import SettingError

_SERVICE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?/[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_KEY = re.compile(r"[A-Za-z0-9_-]{43}")


def add_gateway_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument(
        contract.FLAG_SERVICE,
        type=parse_service,
        metavar="NAMESPACE/NAME",
        help=f"the service of this replica, which a token for {contract.FLAG_GATEWAY_KEY} must name",
    )
    parser.add_argument(
        contract.FLAG_GATEWAY_KEY,
        type=parse_gateway_key,
        action="append",
        default=[],
        dest="gateway_keys",
        metavar="KEY",
        help="answer only requests with a token that the gateway signed for this public key; may be repeated",
    )


def check_gateway_flags(values: argparse.Namespace) -> None:
    """Raise SettingError if one of the flags is there without the other."""
    if bool(values.service) != bool(values.gateway_keys):
        raise SettingError(
            f"{contract.FLAG_SERVICE} and {contract.FLAG_GATEWAY_KEY} need each other: with both, the replica"
            " answers only requests with a token of the gateway for this service; write both or neither"
        )


def parse_service(text: str) -> str:
    """Return the text if it names a service with its namespace."""
    if not _SERVICE.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no service; write its namespace and name, such as team/chat"
        )
    return text


def parse_gateway_key(text: str) -> str:
    """Return the text if it is a public key, as `gateway_token.decode_key` takes it.

    The supervisor calls this, which does not load the library of the keys.
    """
    if not _KEY.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no public key; write the 32 bytes of an Ed25519 key in base64url, without padding"
        )
    return text
