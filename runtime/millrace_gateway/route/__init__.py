"""Finds the service of a request, and one of its replicas."""
