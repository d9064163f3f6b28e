"""The gateway's choice on real replicas: `python -m benchmarks.routing.live`."""
