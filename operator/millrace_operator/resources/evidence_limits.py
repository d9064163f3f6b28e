"""How long the parts of `status.scaling` may be: the API server refuses a status that is longer."""

NUM_CHANGES = 20
NUM_CANDIDATES = 16
NUM_REJECTED = 32
NAME_LENGTH = 64
REASON_LENGTH = 256
WORDS_LENGTH = 1024
