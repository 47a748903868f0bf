"""The nouns of a problem: losses, divergences, constraints, uncertainty sets."""
