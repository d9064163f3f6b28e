"""What a client gets: text, log-probabilities and chunks, in the dialect that it asked in."""
