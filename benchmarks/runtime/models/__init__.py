"""The models that engines are compared at: their shapes, and the files that we make of them."""
