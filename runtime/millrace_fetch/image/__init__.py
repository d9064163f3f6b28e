"""A model in a container image: a look into its layers before a fetch, and their files."""
