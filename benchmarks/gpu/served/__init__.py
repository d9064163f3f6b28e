"""The part `replica` is made of this: a checkpoint, `millrace serve` as a process, and clients."""
