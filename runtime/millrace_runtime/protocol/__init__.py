"""The messages between a replica's processes: msgspec structs, no torch, no I/O."""
