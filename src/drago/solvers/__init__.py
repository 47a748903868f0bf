"""Solvers: one loop (`base`), one file a method."""
