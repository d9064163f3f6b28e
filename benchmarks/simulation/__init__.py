"""A simulated replica beside a real one: whether the simulator says what really happens."""
