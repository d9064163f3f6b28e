"""What Prometheus is asked, and what its answers say of one service. Pure."""
