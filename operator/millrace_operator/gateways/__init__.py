"""What the gateways report: a stream from each of them, which only the leader reads."""
