"""What only the leader does for the gateways: it reads a stream from each, and keeps their signing keys."""
