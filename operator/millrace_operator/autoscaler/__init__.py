"""How many replicas keep the objectives: signals in, a decision and its reasons out.

`run/` asks Prometheus and calls `decide/`, which is pure; `simulate/` calls it in virtual time.
"""
