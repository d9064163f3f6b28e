"""Requests that wait for a replica, and what keeps a service awake."""
