"""Guesses at the next tokens, and which of them a step proves. It knows tokens and plans, and no device."""
