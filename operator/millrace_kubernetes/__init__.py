"""Reads the Kubernetes API: where its server is, who we are to it, and how to follow a collection of objects.

The operator, the gateway and the local cluster's nodes use it. It knows Kubernetes only: no resource of
Millrace, and no other package of ours.
"""
