"""Stand-ins of the sources that models come from, and processes that fetch from them."""
