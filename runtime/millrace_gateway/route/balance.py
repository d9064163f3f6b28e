"""Picks the replica of a request: the least loaded one. Pure.

A replica's load is the larger of two figures. One is the number of this gateway's own sequences at it. The
other is what the replica has reported, its waiting and running sequences, plus those that this gateway has
sent since: so a gateway also sees the requests of the others. A report counts for FRESH_SECONDS. Ties rotate.

A new replica's share of the requests grows from nothing to a full one (`standing.py`).

A replica that fails is picked only if there is no other (`ejection.py`).
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from millrace_gateway.route.ejection import ALL_ARE_GOOD, Judgement, judge
from millrace_gateway.route.load_report import LoadReport
from millrace_gateway.route.objects import Replica, ServiceKey
from millrace_gateway.route.standing import LEAST_SHARE, Standing, find_share
from millrace_runtime.contract import SLOW_START_SECONDS

FRESH_SECONDS = 2.0
"""How long a report of a load counts."""
POLL_SECONDS = 0.5
"""Without a report for so long, a replica with requests in flight is asked for one."""
NUM_GONE = 1024


class Candidate(NamedTuple):
    """A replica that may get a request."""

    replica: Replica
    num_own: int
    """This gateway's sequences at it."""
    share: float
    """Of a full replica's requests: less for one that has just started."""
    report: LoadReport | None
    """The last one, if it still counts."""
    num_change: int
    """By how many this gateway's sequences have become more since that report."""


Preference = Callable[[Sequence[Candidate]], str | None]
"""Chooses the uid of one of the candidates; None: it does not matter."""


class Balancer:
    """Owner of the counts in flight, of the replicas' reports, and of the replicas that have failed lately.

    `eject_seconds` is the time of a first ejection.
    """

    def __init__(self, eject_seconds: float) -> None:
        self._eject_seconds = eject_seconds
        self.num_changes = 0
        """Number of starts and ends of requests."""
        self._standings: dict[str, Standing] = {}
        self._busy: dict[str, Standing] = {}
        """Those with requests of this gateway in flight."""
        self._busy_of: dict[ServiceKey, dict[str, Standing]] = {}
        """The same by service: a look at one costs the same beside thousands of others."""
        self._doubted: dict[str, Standing] = {}
        """Those that have failed, and have begun no good answer since."""
        self._gone: deque[str] = deque()
        self._turn = 0

    def pick(
        self,
        replicas: Sequence[Replica],
        tried: Collection[str],
        now: float,
        prefer: Preference | None = None,
    ) -> Replica | None:
        """Return the least loaded replica whose uid is not in `tried`, or None.

        A replica that is ejected is picked only if there is no other: of several, the one that failed the
        longest ago. One that leaves comes behind those that refuse, whose requests another one gets, and
        before those that break off or err. `prefer` may choose another one among those that do neither.
        """
        judgement = self._judge(replicas, now)
        found = self._prefer(replicas, tried, now, judgement, prefer=prefer) if prefer else None
        found = found or self._find_best(replicas, tried, now, judgement)
        doubted = self._doubted.get(found.uid) if found else None
        if found and doubted and found.uid not in judgement.avoided:  # this request alone tries it
            doubted.probed_at = now
        return found

    def _judge(self, replicas: Sequence[Replica], now: float) -> Judgement:
        if not self._doubted:
            return ALL_ARE_GOOD
        doubted: dict[str, Standing] = {}
        for replica in replicas:
            standing = self._doubted.get(replica.uid)
            if standing is None:
                continue
            if replica.ready_at > standing.failed_at:
                standing.forgive()
                del self._doubted[replica.uid]
            else:
                doubted[replica.uid] = standing
        return judge(doubted, len(replicas), now, self._eject_seconds)

    def _find_best(
        self, replicas: Sequence[Replica], tried: Collection[str], now: float, judgement: Judgement
    ) -> Replica | None:
        """Return the replica of the lowest rank and load. It runs for each request: 2 µs at 4 replicas."""
        self._turn = turn = self._turn + 1
        num, standings = len(replicas), self._standings
        avoided, tolerated = judgement
        least = self._find_largest_load(replicas, now) if tolerated else 0
        best, best_rank, best_load = None, 5, 0.0
        for index in range(turn, turn + num):
            replica = replicas[index % num]
            uid = replica.uid
            if uid in tried:
                continue
            standing = standings.get(uid)
            rank, load = (2 if replica.is_leaving else 0), 1.0
            if standing is not None:
                if uid in avoided:
                    rank = 4 if rank else (1 if standing.has_refused else 3)
                    load = standing.failed_at
                else:
                    load += max(standing.find_load(now), least if uid in tolerated else 0)
            if uid not in avoided and now < replica.ready_at + SLOW_START_SECONDS:
                load /= find_share(now - replica.ready_at)
            if rank < best_rank or (rank == best_rank and load < best_load):
                best, best_rank, best_load = replica, rank, load
        return best

    def _find_largest_load(self, replicas: Sequence[Replica], now: float) -> int:
        found = (self._standings.get(replica.uid) for replica in replicas)
        return max((standing.find_load(now) for standing in found if standing), default=0)

    def _prefer(
        self,
        replicas: Sequence[Replica],
        tried: Collection[str],
        now: float,
        judgement: Judgement,
        prefer: Preference,
    ) -> Replica | None:
        avoided, tolerated = judgement
        candidates = [
            self._describe(replica, now)
            for replica in replicas
            if not (replica.is_leaving or replica.uid in tried or replica.uid in avoided)
        ]
        if tolerated:
            least = self._find_largest_load(replicas, now)
            candidates = [
                one._replace(num_own=least, report=None) if one.replica.uid in tolerated else one
                for one in candidates
            ]
        uid = prefer(candidates) if candidates else None
        return next((one.replica for one in candidates if one.replica.uid == uid), None)

    def _describe(self, replica: Replica, now: float) -> Candidate:
        standing, share = self._standings.get(replica.uid), find_share(now - replica.ready_at)
        if standing is None:
            return Candidate(replica, 0, share, None, 0)
        report = standing.report if now < standing.fresh_until else None
        change = standing.num_sequences - standing.num_sequences_then
        return Candidate(replica, standing.num_sequences, share, report, change)

    def begin(self, replica: Replica, num_sequences: int = 1) -> None:
        """Count a request that is sent to the replica; the caller counts its end."""
        uid = replica.uid
        standing = self._busy.get(uid)
        if standing is None:
            standing = self._busy[uid] = self._find_standing(uid)
            standing.service = replica.key
            self._busy_of.setdefault(replica.key, {})[uid] = standing
        standing.replica = replica
        standing.in_flight += 1
        standing.num_sequences += num_sequences
        standing.reported_load += num_sequences
        self.num_changes += 1

    def end(self, replica: Replica, num_sequences: int = 1) -> None:
        """Count the end of a request that has begun."""
        standing = self._busy[replica.uid]
        standing.in_flight -= 1
        standing.num_sequences -= num_sequences
        self.num_changes += 1
        if not standing.in_flight:
            del self._busy[replica.uid]
            busy = self._busy_of[standing.service]
            del busy[replica.uid]
            if not busy:
                del self._busy_of[standing.service]

    def note_failure(self, replica: Replica, now: float, *, is_refusal: bool = False) -> None:
        """Record that the replica refused a request, or broke off."""
        standing = self._doubted[replica.uid] = self._find_standing(replica.uid)
        standing.note_failure(now, self._eject_seconds, is_refusal=is_refusal)

    def note_nothing(self, replica: Replica) -> None:
        """Record that a request has ended without an answer, and not by the replica."""
        standing = self._doubted.get(replica.uid)
        if standing is not None:
            standing.note_nothing()

    def note_answer(self, replica: Replica, status: int, now: float, *, is_generation: bool = True) -> None:
        """Record that the replica has begun an answer: it is trusted again, unless errors follow errors."""
        uid = replica.uid
        standing = self._find_standing(uid)
        standing.note_answer(status, now, self._eject_seconds, is_generation=is_generation)
        if standing.is_doubted:
            self._doubted[uid] = standing
        elif self._doubted:
            self._doubted.pop(uid, None)

    def note_whole(self, replica: Replica) -> None:
        """Record that a good answer to a generation has ended as it should."""
        standing = self._standings.get(replica.uid)
        if standing is not None:
            standing.note_whole()

    def note_load(self, uid: str, report: LoadReport) -> None:
        """Record a replica's own report of its load."""
        standing = self._find_standing(uid)
        standing.report = report
        standing.num_sequences_then = standing.num_sequences
        standing.reported_load = report.waiting + report.running
        standing.fresh_until = report.reported_at + FRESH_SECONDS

    def wants_load(self, uid: str, before: float) -> bool:
        """Whether the replica's last report is older than that, or there is none."""
        standing = self._standings.get(uid)
        return standing is None or standing.report is None or standing.report.reported_at < before

    def polls_due(self, now: float) -> list[Replica]:
        """Return the replicas to ask for a report now; none of them is due again for POLL_SECONDS."""
        due = []
        for standing in self._busy.values():
            known_at = standing.report.reported_at if standing.report else float("-inf")
            if standing.replica is not None and now >= max(known_at, standing.polled_at) + POLL_SECONDS:
                standing.polled_at = now
                due.append(standing.replica)
        return due

    def forget(self, uid: str) -> None:
        """Forget a replica that is gone, except its requests in flight.

        It is forgotten once more after NUM_GONE others: until then its last requests fail.
        """
        self._forget(uid)
        self._gone.append(uid)
        if len(self._gone) > NUM_GONE:
            self._forget(self._gone.popleft())

    def _forget(self, uid: str) -> None:
        self._standings.pop(uid, None)
        self._doubted.pop(uid, None)

    def is_ejected(self, uid: str, now: float) -> bool:
        """Whether a replica comes last because it has failed."""
        standing = self._standings.get(uid)
        return standing is not None and standing.is_ejected(now)

    def find_shares(self, replicas: Sequence[Replica], now: float) -> dict[str, float]:
        """Return the share of requests of each replica that gets some, by uid, relative to a full one.

        As in a choice, one that leaves or has failed is better than none. One request tries a replica after
        its ejection.
        """
        judgement = self._judge(replicas, now)
        good = [one for one in replicas if not (one.is_leaving or one.uid in judgement.avoided)]
        return {one.uid: self._find_share(one, now, judgement.tolerated) for one in good or replicas}

    def _find_share(self, replica: Replica, now: float, tolerated: Collection[str]) -> float:
        is_doubted = replica.uid in self._doubted and replica.uid not in tolerated
        return LEAST_SHARE if is_doubted else find_share(now - replica.ready_at)

    def count_sequences(self, replica: Replica) -> int:
        """Return the number of this gateway's sequences at the replica."""
        standing = self._busy.get(replica.uid)
        return standing.num_sequences if standing else 0

    def count_all(self) -> dict[str, int]:
        """Return the number of this gateway's requests at each replica that has some, by uid."""
        return {uid: standing.in_flight for uid, standing in self._busy.items()}

    def count_service(self, key: ServiceKey) -> dict[str, int]:
        """Return the number of this gateway's sequences at the replicas of one service."""
        return {uid: standing.num_sequences for uid, standing in self._busy_of.get(key, {}).items()}

    def _find_standing(self, uid: str) -> Standing:
        standing = self._standings.get(uid)
        if standing is None:
            standing = self._standings[uid] = self._busy.get(uid) or Standing()
        return standing


def has_candidate(replicas: Sequence[Replica], tried: Collection[str]) -> bool:
    """Whether one of the replicas is not in `tried` and stays."""
    return any(not replica.is_leaving and replica.uid not in tried for replica in replicas)
