"""How many replicas keep the objectives: signals in, a decision and its reasons out.

Decides only: `autoscale_loop` brings the signals and acts. Must not know Kubernetes or the resource's types.
"""
