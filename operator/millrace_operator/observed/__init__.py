"""A service as it was seen at one moment: its objects, revisions and pods. Pure."""
