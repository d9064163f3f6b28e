"""What was seen of a service at one moment: its objects, revisions and pods. Pure."""
