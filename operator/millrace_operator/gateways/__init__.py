"""What the gateways tell: a stream from each of them, read by the leader alone."""
