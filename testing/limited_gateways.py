"""Gateways that share one client's limit, without connections: a test carries their reports."""

from collections.abc import Callable, Iterable
from itertools import count

from millrace_gateway.access.errors import RateLimitedError
from millrace_gateway.access.identity import Client, Tenant
from millrace_gateway.access.limits.ledger import AccountKey, Ledger
from millrace_gateway.access.limits.limiter import Limiter
from millrace_gateway.access.limits.reservation import Reservation
from millrace_gateway.access.peers.limit_exchange import LimitExchange
from millrace_gateway.access.policy import AccessPolicy, RateLimit, Scope
from millrace_gateway.route.objects import ServiceKey

SERVICE = ServiceKey("a", "chat")
CLIENT = Client(Tenant("a", "keys", "ada"))
LIMIT = 1000
"""Tokens a minute."""
CONCURRENCY = 8
POLICY = AccessPolicy(rate_limits=(RateLimit(Scope.KEY, None, LIMIT, CONCURRENCY),))
REQUESTS = 60
"""Requests a minute, of the other policy."""
BY_REQUESTS = AccessPolicy(rate_limits=(RateLimit(Scope.KEY, REQUESTS),))
_INCARNATIONS = count(1)


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class LimitedGateway:
    """The part of a gateway that counts."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self.name = name
        self.clock = clock
        self.restart()

    def restart(self) -> None:
        self.ledger = Ledger(self.clock)
        self.limiter = Limiter(self.ledger)
        self.exchange = LimitExchange(self.ledger, f"{self.name}-{next(_INCARNATIONS)}")
        self.open: list[tuple[Reservation, int]] = []
        """Each with the tokens that it has reserved."""

    def admit(self, tokens: int, policy: AccessPolicy = POLICY) -> bool:
        try:
            reservation = self.limiter.admit(CLIENT, SERVICE, policy, tokens)
        except RateLimitedError:
            return False
        self.open.append((reservation, min(tokens, LIMIT)))
        return True

    def use(self, tokens: int) -> int:
        """Send one request that ends at once; return what it has used: all, or nothing."""
        if not self.admit(tokens):
            return 0
        self.open.pop()[0].settle(None)
        return tokens

    def request(self) -> int:
        """Send one request that ends at once, by the other policy; return how many were admitted."""
        is_admitted = self.admit(1, BY_REQUESTS)
        if is_admitted:
            self.open.pop()[0].settle(None)
        return int(is_admitted)

    @property
    def deficit(self) -> float:
        """What is missing from the whole limit."""
        account = self.ledger.find(AccountKey(SERVICE, CLIENT.tenant))
        return account.tokens.find_total(self.clock(), self.ledger.share) if account else 0.0


def meet(gateways: Iterable[LimitedGateway]) -> None:
    """Every gateway learns of all others."""
    known = list(gateways)
    for gateway in known:
        gateway.exchange.set_peers([other.name for other in known if other is not gateway])


def tell(gateways: Iterable[LimitedGateway], rounds: int = 1) -> None:
    """Every gateway reports to all others."""
    known = list(gateways)
    for _ in range(rounds):
        for gateway in known:
            for other in known:
                if other is not gateway:
                    other.exchange.apply_report(gateway.name, gateway.exchange.take_report(other.name).data)


def make_gateways(num: int, clock: Clock) -> list[LimitedGateway]:
    """Return gateways that hear each other."""
    gateways = [LimitedGateway(f"g{i}", clock) for i in range(num)]
    meet(gateways)
    tell(gateways, rounds=2)
    assert all(gateway.exchange.is_settled and gateway.ledger.share == 1.0 for gateway in gateways)
    return gateways
