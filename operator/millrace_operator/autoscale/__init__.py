"""How many replicas keep the objectives: signals in, a decision and its reasons out.

Pure but for signals.py, which reads Prometheus. Must not know Kubernetes or the resource's types.
"""
