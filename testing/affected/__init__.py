"""Which tests a change can turn red: `make check` runs these alone."""
