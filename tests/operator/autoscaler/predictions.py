"""Our autoscaler with the predictions that `explain` would show for the present count, and their errors."""

from typing import NamedTuple

from millrace_operator.autoscaler.decide.attainment import LARGEST_ERROR, predict
from millrace_operator.autoscaler.decide.policy import Objective, Policy
from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.simulate.run import Choice, Ours, Run, is_within


class Predicting(Ours):
    """Ours, which also predicts the part in time with the present count."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.predicted: dict[float, float] = {}
        """The part of the requests in time, by the time of the prediction."""

    def choose(self, signals: Signals, now: float) -> Choice:
        """Decide, and record the prediction if `explain` would show one."""
        choice = super().choose(signals, now)
        assert self.decision is not None
        replica, rate = self.decision.estimate.replica, self.decision.estimate.rate
        off = self.decision.prediction_error
        if off is not None and off <= LARGEST_ERROR and replica and rate is not None:
            found = predict(replica, self.policy.objectives, rate, len(signals.fleet.ready) or 1)
            self.predicted[now] = min(found.values())
        return choice


class Compared(NamedTuple):
    """The predicted and the measured part in time, of the requests that came while there was a prediction."""

    predicted: float
    measured: float
    num_requests: int


def compare(scaler: Predicting, run: Run, objectives: tuple[Objective, ...]) -> Compared:
    """Return the predictions beside the measurements of the same requests."""
    seconds = scaler.tick_seconds
    predicted, measured = [], []
    for answer in run.answers:
        share = scaler.predicted.get(answer.request.at // seconds * seconds)
        if share is not None:
            predicted.append(share)
            measured.append(all(is_within(answer, objective) for objective in objectives))
    return Compared(sum(predicted) / len(predicted), sum(measured) / len(measured), len(predicted))
