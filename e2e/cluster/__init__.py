"""A local Kubernetes cluster of real parts without root: a library for tests, a command for people.

The control plane and Prometheus are the real programs, built once and cached; pods run as host
processes (`nodes`). It must not know the product: only `product` installs the chart, as a user would.
"""
