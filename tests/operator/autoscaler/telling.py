"""Our autoscaler with what it would tell people of the present count, and what came of it."""

from typing import NamedTuple

from millrace_operator.autoscaler.decide.attainment import LARGEST_ERROR, predict
from millrace_operator.autoscaler.decide.policy import Objective, Policy
from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.simulate.run import Choice, Ours, Run, is_within


class Telling(Ours):
    """Ours, with what it would tell of the present count."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.told: dict[float, float] = {}
        """The part in time, by when."""

    def choose(self, signals: Signals, now: float) -> Choice:
        """Decide, and note what is told."""
        choice = super().choose(signals, now)
        assert self.decision is not None
        replica, rate = self.decision.estimate.replica, self.decision.estimate.rate
        off = self.decision.prediction_error
        if off is not None and off <= LARGEST_ERROR and replica and rate is not None:
            found = predict(replica, self.policy.objectives, rate, len(signals.fleet.ready) or 1)
            self.told[now] = min(found.values())
        return choice


class Compared(NamedTuple):
    """The means of what was told and of what came, over the requests that came while something was told."""

    told: float
    came: float
    num_requests: int


def compare(scaler: Telling, run: Run, objectives: tuple[Objective, ...]) -> Compared:
    """Return how true what was told has been."""
    seconds = scaler.tick_seconds
    told, came = [], []
    for answer in run.answers:
        share = scaler.told.get(answer.request.at // seconds * seconds)
        if share is not None:
            told.append(share)
            came.append(all(is_within(answer, objective) for objective in objectives))
    return Compared(sum(told) / len(told), sum(came) / len(came), len(told))
