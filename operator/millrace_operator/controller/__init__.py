"""Watches the cluster, plans, and writes what a plan asks for. Only the leader writes."""
