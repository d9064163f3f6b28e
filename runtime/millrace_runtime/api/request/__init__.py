"""Requests: reading, checking and tokenising a client's body."""
