"""Rows on the workers of a cluster: parts that live there, and rounds of tasks over them."""
