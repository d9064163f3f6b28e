"""Answers: a sequence's text and log-probabilities, as the chunks or the JSON of each dialect."""
