"""The autoscaler on the leading operator: it asks Prometheus, decides, and keeps what it has learned."""
