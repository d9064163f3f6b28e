"""Reads the Kubernetes API: the server's address, our credentials, and watches of collections of objects.

The operator, the gateway, the node cache and the local cluster's nodes use it. It knows no other package of
ours. Of Millrace's resource it knows durations and model names, which several of these programs read alike.
"""
