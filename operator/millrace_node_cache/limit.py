"""How much of a disk may be in use: `80%` of all of it, or `500Gi` of models. Pure."""

import re
from dataclasses import dataclass

from millrace_node_cache.models import Look

_SHARE = re.compile(r"([0-9]{1,3})%")
_AMOUNT = re.compile(r"([0-9]{1,18})(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)")
_UNITS = {
    **{unit: 1000**power for power, unit in enumerate(("k", "M", "G", "T", "P"), start=1)},
    **{unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), start=1)},
}


@dataclass(frozen=True)
class ShareLimit:
    """A share of the disk, whoever uses it."""

    percent: int

    def excess_bytes(self, look: Look) -> int:
        """Return how much is too much, once what is coming has come."""
        allowed = look.space.total_bytes * self.percent // 100
        return max(0, look.space.used_bytes + look.coming_bytes - allowed)


@dataclass(frozen=True)
class AmountLimit:
    """An amount, of the models alone."""

    num_bytes: int

    def excess_bytes(self, look: Look) -> int:
        """Return how much is too much, once what is coming has come."""
        return max(0, look.kept_bytes + look.coming_bytes - self.num_bytes)


Limit = ShareLimit | AmountLimit


def parse_limit(text: str) -> Limit:
    """Return the limit. Raises ValueError, which says what to write."""
    if (share := _SHARE.fullmatch(text)) and 1 <= int(share[1]) <= 100:
        return ShareLimit(int(share[1]))
    if (amount := _AMOUNT.fullmatch(text)) and int(amount[1]) > 0:
        return AmountLimit(int(amount[1]) * _UNITS[amount[2]])
    raise ValueError(
        f"{text!r} is no limit; write a share of the disk from 1% to 100%, or an amount as 500Gi"
    )
