"""What the engine itself costs a step: scheduling, slots and results, without a model."""
