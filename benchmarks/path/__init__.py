"""The whole path, timed: a fresh clone to a token, apply to a token, a ramp of load to its recovery."""
