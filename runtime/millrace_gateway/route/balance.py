"""Picks the replica of a request: the least loaded one. Pure.

A replica's load is the larger of two figures. One is the number of this gateway's own sequences at it. The
other is what the replica has reported, its waiting and running sequences, plus those that this gateway has
sent since: so a gateway also sees the requests of the others. A report counts for FRESH_SECONDS. Ties rotate.

A new replica's share of the requests grows from nothing to a full one (`standing.py`).

A replica that fails is picked only if there is no other (`ejection.py`).
"""

from collections import deque
from collections.abc import Collection, Hashable, Sequence

from millrace_gateway.route.ejection import ALL_ARE_GOOD, Judgement, Suspects, judge
from millrace_gateway.route.load_report import LoadReport
from millrace_gateway.route.objects import Replica
from millrace_gateway.route.preference import Chooser, describe_candidate
from millrace_gateway.route.sequence_counts import SequenceCounts
from millrace_gateway.route.standing import (
    LEAST_SHARE,
    Standing,
    find_largest_load,
    find_last_resort,
    find_least_error_share,
    find_share,
)
from millrace_runtime.contract import SLOW_START_SECONDS

FRESH_SECONDS = 2.0
"""How long a report of a load counts."""
POLL_SECONDS = 0.5
"""Without a report for so long, a replica with requests in flight is asked for one."""
NUM_GONE = 1024
"""Gone replicas that the balancer remembers, to forget them once more."""


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
        self.sequence_counts = SequenceCounts()
        """Their sequences, by service."""
        self._doubted: dict[str, Standing] = {}
        """Those that have failed, and have begun no good answer since."""
        self._suspects = Suspects()
        self._gone: deque[str] = deque()
        self._turn = 0

    def pick(
        self,
        replicas: Sequence[Replica],
        tried: Collection[str],
        now: float,
        prefer: Chooser | None = None,
    ) -> Replica | None:
        """Return the least loaded replica whose uid is not in `tried`, or None.

        An ejected replica comes last (`find_last_resort`), and a leaving one after those that stay. `prefer`
        may choose another replica among the rest.
        """
        judgement = self._judge(replicas, now)
        found = self._prefer(replicas, tried, now, judgement, prefer=prefer) if prefer else None
        found = found or self._find_best(replicas, tried, now, judgement)
        doubted = self._doubted.get(found.uid) if found else None
        if found and doubted and found.uid not in judgement.avoided:  # this request alone tries it
            doubted.probed_at = now
            if found.uid not in judgement.tolerated:
                self.sequence_counts.forget_changes(found.key)
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
        if not doubted:
            return ALL_ARE_GOOD
        if len(doubted) == len(replicas):
            for standing in doubted.values():
                standing.shorten(self._eject_seconds)
        least = find_least_error_share(replicas, self._standings, now)
        return judge(doubted, len(replicas), least, now, self._eject_seconds)

    def _find_best(
        self, replicas: Sequence[Replica], tried: Collection[str], now: float, judgement: Judgement
    ) -> Replica | None:
        """Return the replica of the lowest rank and load. It runs for each request: 2 µs at 4 replicas."""
        self._turn = turn = self._turn + 1
        num, standings = len(replicas), self._standings
        avoided, tolerated = judgement
        least = find_largest_load(replicas, self._standings, now) if tolerated else 0
        best, best_rank, best_load = None, 2, 0.0
        for index in range(turn, turn + num):
            replica = replicas[index % num]
            uid = replica.uid
            if uid in tried or uid in avoided:
                continue
            standing = standings.get(uid)
            rank, load = int(replica.is_leaving), 1.0
            if standing is not None:
                load += standing.find_load(now)
            if tolerated and uid in tolerated:
                load = max(load, least + 1.0)
            if now < replica.ready_at + SLOW_START_SECONDS:
                load /= find_share(now - replica.ready_at)
            if rank < best_rank or (rank == best_rank and load < best_load):
                best, best_rank, best_load = replica, rank, load
        if not best_rank or not avoided:
            return best
        failed = [one for one in replicas if one.uid in avoided and one.uid not in tried]
        return find_last_resort(failed, standings, now, leaving=best)

    def _prefer(
        self,
        replicas: Sequence[Replica],
        tried: Collection[str],
        now: float,
        judgement: Judgement,
        prefer: Chooser,
    ) -> Replica | None:
        avoided, tolerated = judgement
        candidates = [
            describe_candidate(replica, self._standings.get(replica.uid), now)
            for replica in replicas
            if not (replica.is_leaving or replica.uid in tried or replica.uid in avoided)
        ]
        if tolerated:
            least = find_largest_load(replicas, self._standings, now)
            candidates = [
                one._replace(num_own=least, report=None) if one.replica.uid in tolerated else one
                for one in candidates
            ]
        uid = prefer(candidates) if candidates else None
        return next((one.replica for one in candidates if one.replica.uid == uid), None)

    def begin(self, replica: Replica, num_sequences: int = 1) -> None:
        """Count a request that is sent to the replica; the caller counts its end."""
        uid = replica.uid
        standing = self._busy.get(uid)
        if standing is None:
            standing = self._busy[uid] = self._find_standing(uid)
            standing.service = replica.key
        standing.replica = replica
        standing.in_flight += 1
        standing.num_sequences += num_sequences
        standing.reported_load += num_sequences
        self.sequence_counts.add(standing.service, uid, num_sequences)
        self.num_changes += 1

    def end(self, replica: Replica, num_sequences: int = 1) -> None:
        """Count the end of a request that has begun."""
        standing = self._busy[replica.uid]
        standing.in_flight -= 1
        standing.num_sequences -= num_sequences
        self.sequence_counts.add(standing.service, replica.uid, -num_sequences)
        self.num_changes += 1
        if not standing.in_flight:
            del self._busy[replica.uid]

    def note_failure(self, replica: Replica, now: float, *, is_refusal: bool = False) -> None:
        """Record that the replica refused a request, or broke off."""
        standing = self._doubted[replica.uid] = self._find_standing(replica.uid)
        standing.note_failure(now, self._eject_seconds, is_refusal=is_refusal)
        self.sequence_counts.forget_changes(replica.key)

    def note_nothing(self, replica: Replica) -> None:
        """Record that a request has ended without an answer, for a reason other than the replica."""
        if standing := self._doubted.get(replica.uid):
            standing.note_nothing()

    def note_answer(
        self,
        replica: Replica,
        status: int,
        now: float,
        *,
        is_generation: bool = True,
        asked_at: float | None = None,
        tenant: Hashable = None,
    ) -> None:
        """Record that the replica has begun an answer: it is trusted again, unless errors follow errors.

        `asked_at` is when the request was sent; None: just now. `tenant` is its client; None: unknown.
        """
        uid = replica.uid
        standing = self._find_standing(uid)
        standing.note_answer(
            status,
            now,
            self._eject_seconds,
            is_generation=is_generation,
            asked_at=now if asked_at is None else asked_at,
            client=tenant and (replica.key, tenant),
            suspects=self._suspects,
        )
        if standing.is_doubted:
            self._doubted[uid] = standing
            self.sequence_counts.forget_changes(replica.key)
        elif uid in self._doubted:
            del self._doubted[uid]
            self.sequence_counts.forget_changes(replica.key)

    def note_whole(self, replica: Replica) -> None:
        """Record that a good answer to a generation has ended as it should."""
        if standing := self._standings.get(replica.uid):
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

        As in `pick`, a leaving or a failed replica is better than none. One request alone tries a replica
        after its ejection.
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

    def _find_standing(self, uid: str) -> Standing:
        standing = self._standings.get(uid)
        if standing is None:
            standing = self._standings[uid] = self._busy.get(uid) or Standing()
        return standing


def has_candidate(replicas: Sequence[Replica], tried: Collection[str]) -> bool:
    """Whether one of the replicas is not in `tried` and stays."""
    return any(not replica.is_leaving and replica.uid not in tried for replica in replicas)
