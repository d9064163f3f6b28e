"""How long the parts of `status.scaling` may be: the API server refuses a status that is longer."""

NUM_CHANGES = 5
NUM_CANDIDATES = 16
NUM_REJECTED = 32
NAME_LENGTH = 64
REASON_LENGTH = 256
WORDS_LENGTH = 1024

# What some of its figures are compared with, here and by who reads them.
SPENT_SECONDS = 120.0
"""Of a burn of one beyond the allowed one, until a replica is asked for: 8 s of all requests at P95 late."""
FUTILE_STEPS = 2
"""Replicas that were added in turn and left as many requests late. No more are added then."""
FLAPS_BORNE = 1
"""Counts that fell too early. With more a lower count has to be enough for longer."""
MIN_LATENCY_SAMPLES = 3.0
"""Times 1/(1-q): fewer requests say nothing about a quantile."""
TRIED = "only what replicas tried before the first request is known"
"""Of `learning`."""
