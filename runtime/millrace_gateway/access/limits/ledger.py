"""The use of each limit, through this gateway and as other gateways report it. Pure.

An account has the use of one service: of one client, or of all of them. The ledger forgets it once its
buckets are full again, nothing runs, and every other gateway that this one hears knows its last state.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from typing import NamedTuple

from millrace_gateway.access.identity import Tenant
from millrace_gateway.access.limits.bucket import Bucket
from millrace_gateway.route.objects import ServiceKey

_NUM_LOOKED_AT = 64
"""Accounts that one call of `forget_some` looks at: it takes 30 microseconds, and never stops the streams."""


class AccountKey(NamedTuple):
    """Names an account."""

    service: ServiceKey
    tenant: Tenant | None
    """None: all clients of the service."""


class Meter:
    """One limit a minute, and what this gateway has used of it since the account began."""

    __slots__ = ("bucket", "spent")

    def __init__(self) -> None:
        self.bucket: Bucket | None = None
        """None while no limit is known."""
        self.spent = 0
        """It shrinks when a request used less than was reserved."""

    def open(self, limit: int, now: float, share: float) -> Bucket:
        """Return the bucket, brought to this time, with this limit; what is missing stays."""
        bucket = self.bucket
        if bucket is None:
            bucket = self.bucket = Bucket(limit, now)
        bucket.advance(now, share)
        bucket.limit = limit
        return bucket

    def spend(self, amount: int, now: float, share: float) -> None:
        """Use an amount here, or give one back if it is negative."""
        if self.bucket is not None:
            self.spent += amount
            self.bucket.advance(now, share)
            self.bucket.add(amount)

    def advance(self, now: float, share: float) -> None:
        """Bring the bucket to this time."""
        if self.bucket is not None:
            self.bucket.advance(now, share)

    def find_total(self, now: float, share: float) -> float:
        """Return what is missing from the whole limit."""
        if self.bucket is None:
            return 0.0
        self.bucket.advance(now, share)
        return self.bucket.total


class Account:
    """The use of one service, by one client or by all."""

    __slots__ = ("key", "num_elsewhere", "num_here", "requests", "since", "tokens", "version")

    def __init__(self, key: AccountKey) -> None:
        self.key = key
        self.since = 0
        """The ledger's version when the account began."""
        self.version = 0
        """The ledger's version at its last change by this gateway."""
        self.requests = Meter()
        self.tokens = Meter()
        self.num_here = 0
        """Requests that run through this gateway."""
        self.num_elsewhere = 0
        """Requests that run through other gateways, as they last reported."""

    def is_idle(self, now: float, share: float) -> bool:
        """Whether the buckets are full and nothing runs."""
        return not (
            self.num_here
            or self.num_elsewhere
            or self.requests.find_total(now, share)
            or self.tokens.find_total(now, share)
        )


class Ledger:
    """Owner of all accounts. `clock` returns the seconds of a monotonic clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.share = 1.0
        """This gateway's part of every limit, with the gateways that it hears."""
        self.version = 0
        """Number of changes by this gateway."""
        self._accounts: OrderedDict[AccountKey, Account] = OrderedDict()
        """In the order of their versions."""
        self._forgotten: OrderedDict[AccountKey, int] = OrderedDict()
        """Accounts that other gateways may still know, with the version at which this one forgot them."""
        self._unseen: Iterator[AccountKey] = iter(())

    def __len__(self) -> int:
        return len(self._accounts)

    def find(self, key: AccountKey) -> Account | None:
        """Return an account, if there is one."""
        return self._accounts.get(key)

    def open(self, key: AccountKey) -> Account:
        """Return an account, and begin it if there is none."""
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account(key)
            self.note_change(account)  # a gateway that starts must learn of it, even if it was used elsewhere
        return account

    def note_change(self, account: Account) -> None:
        """Record that this gateway has begun the account, or changed its own counts there."""
        self.version += 1
        if not account.version:
            account.since = self.version
            self._forgotten.pop(account.key, None)
        account.version = self.version
        self._accounts.move_to_end(account.key)

    def list_changed(self, version: int, most: int) -> list[Account]:
        """Return the accounts that this gateway has changed after a version: the first `most`."""
        if version == 0:
            return list(islice(self._accounts.values(), most))
        changed = list(takewhile(lambda one: one.version > version, reversed(self._accounts.values())))
        return changed[::-1][:most]

    def list_forgotten(self, after: int, until: int) -> list[AccountKey]:
        """Return the accounts that this gateway has forgotten after a version, and until another."""
        return [key for key, at in self._forgotten.items() if after < at <= until]

    def set_share(self, share: float) -> None:
        """Change this gateway's part of every limit."""
        if share == self.share:
            return
        now = self.clock()
        for account in self._accounts.values():
            for meter in (account.requests, account.tokens):
                if meter.bucket is not None:
                    meter.bucket.advance(now, self.share)
                    meter.bucket.divide(share)
        self.share = share

    def find_room(self, concurrency: int, account: Account) -> int:
        """Return how many more requests may run at once."""
        most = concurrency if self.share == 1.0 else max(1, math.ceil(concurrency * self.share))
        return most - account.num_here - account.num_elsewhere

    def forget_some(self, known: int) -> None:
        """Look at some accounts, and forget those that are idle.

        `known`: the version that every other gateway knows, of those that this one hears.
        """
        now = self.clock()
        for _ in range(_NUM_LOOKED_AT):
            key = next(self._unseen, None)
            if key is None:
                self._unseen = iter(list(self._accounts))
                break
            account = self._accounts.get(key)
            if account and account.version <= known and account.is_idle(now, self.share):
                self._forget(account)
        while self._forgotten and next(iter(self._forgotten.values())) <= known:
            self._forgotten.popitem(last=False)

    def _forget(self, account: Account) -> None:
        del self._accounts[account.key]
        self.version += 1
        self._forgotten[account.key] = self.version

    def check_integrity(self) -> None:
        """Assert that the order is that of the versions, and that no count is negative."""
        versions = [account.version for account in self._accounts.values()]
        assert versions == sorted(versions)
        assert list(self._forgotten.values()) == sorted(self._forgotten.values())
        for account in self._accounts.values():
            assert account.key not in self._forgotten
            assert account.num_here >= 0
            assert account.num_elsewhere >= 0
