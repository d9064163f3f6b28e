"""A kubelet stand-in: registers Nodes and runs the pods bound to them as processes of this machine.

Each container has its own user, mount, PID and UTS namespaces and its own root folder, so literal mount
paths are true in it; the network is the host's loopback, one address of 127.0.0.0/8 for each pod.
It enforces limits.cpu; limits.memory and ephemeral-storage only count for scheduling.
It knows Kubernetes and nothing of Millrace except the variable that carries the address to bind.
"""
