"""Weights from rounds of sums over the rows, in NumPy: for arrays, and for rows in parts."""
