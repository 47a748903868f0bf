"""DRAGO: the iteration, its variants, its step sizes, its compiled special case."""
