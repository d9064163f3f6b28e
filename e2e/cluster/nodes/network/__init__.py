"""The pods' network: addresses of 127.0.0.0/8, Service names in /etc/hosts, a TCP proxy for ClusterIPs.

It must not know how pods are run.
"""
