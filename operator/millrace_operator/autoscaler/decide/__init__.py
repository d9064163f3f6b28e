"""From signals and memory to a replica count, with its reasons. Pure."""
