"""Rows from files and from readers of a user's own, which need not fit memory."""
