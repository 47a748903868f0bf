"""Advice on a user's own data: models side by side, and what would help."""
