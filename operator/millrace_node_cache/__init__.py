"""`millrace node-cache` keeps models on a node's own disk. It is one process a node.

It fetches nothing and has no token of a tenant: the init container of a pod that reads a model fetches it.
The node cache makes the folders, records their use, and evicts unused models when the disk is full. Labels of
its Node say which models are complete there. It knows neither the operator nor the gateway.
"""
