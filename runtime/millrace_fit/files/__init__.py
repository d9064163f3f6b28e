"""The files of a model: which a replica needs, their formats, and the headers of safetensors. Pure."""
