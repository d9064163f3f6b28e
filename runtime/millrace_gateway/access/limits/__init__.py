"""Requests and tokens a minute, and requests at once: admits a request, or says when to come back. Pure."""
