"""The queries to Prometheus, and one service's signals from the answers. Pure."""
