"""How fast, how lean and how safely a model is fetched, and how well its size is predicted."""
