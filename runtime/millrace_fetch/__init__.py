"""Fetches models: the files that a replica needs, from a URI into a folder, completely or not at all.

It knows nothing of Kubernetes, of replicas, or of the contents of tensors. It runs and unpickles nothing that
it fetches.
"""
