"""Fetches models: the files of a model's URI that a replica needs, into a folder, whole or not at all.

It knows nothing of Kubernetes, of replicas and of what is in a model's tensors. Nothing that it fetches is
run or unpickled.
"""
