"""The load that one replica carries within the objectives, by a model of its step time. Pure."""
