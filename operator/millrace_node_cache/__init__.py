"""What a node keeps of models on its own disk: `millrace node-cache`, one process a node.

It fetches nothing and has no token of a tenant: a model comes by the init container of a pod that reads it.
It makes the folders, remembers their use, evicts what nobody uses where the disk is full, and tells by labels
of its Node what is whole there. It knows neither the operator nor the gateway.
"""
