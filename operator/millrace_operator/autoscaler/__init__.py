"""The autoscaler: from signals to the number of replicas that keeps the objectives, with the reasons.

`run/` asks Prometheus and calls `decide/`, which is pure. `simulate/` calls the same `decide/` in virtual
time.
"""
