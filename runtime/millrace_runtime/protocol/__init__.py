"""The messages that cross a replica's processes: msgspec structs, no torch, no I/O."""
