"""Addresses for pods in 127.0.0.0/8: one 127.N.0.0/16 for each node, which no other node process has."""

import socket
from collections.abc import Iterator

from e2e.cluster.nodes.errors import SettingsError

FIRST_BLOCK, LAST_BLOCK = 16, 95  # 127.0/16 is the host's own, 127.96/16 and up are for Services


class AddressBlock:
    """127.N.0.0/16 and who has which of its addresses."""

    def __init__(self, number: int, claim: socket.socket | None = None) -> None:
        self.number = number
        self._claim = claim
        self._taken: dict[str, str] = {}
        self._next = self._count()

    def allocate(self, owner: str) -> str:
        """Return the address of `owner` (a pod's uid): the same one until it is released."""
        for address, holder in self._taken.items():
            if holder == owner:
                return address
        address = next(one for one in self._next if one not in self._taken)
        self._taken[address] = owner
        return address

    def release(self, owner: str) -> None:
        """Let `owner`'s address be used again, after all others have been."""
        self._taken = {address: holder for address, holder in self._taken.items() if holder != owner}

    def close(self) -> None:
        """Let another node process have the block."""
        if self._claim is not None:
            self._claim.close()

    def _count(self) -> Iterator[str]:
        while True:
            for third in range(256):
                for fourth in range(1, 255):
                    yield f"127.{self.number}.{third}.{fourth}"


def claim_block() -> AddressBlock:
    """Return a block that no live node process on this machine has. Raises SettingsError when all are taken.

    The claim is an abstract socket's name: the kernel frees it when the process ends, however it ends.
    """
    for number in range(FIRST_BLOCK, LAST_BLOCK + 1):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0millrace-node-127.{number}")
        except OSError:
            claim.close()
            continue
        return AddressBlock(number, claim)
    raise SettingsError("each of 127.16.0.0/16 to 127.95.0.0/16 is another node's; stop a local cluster")
