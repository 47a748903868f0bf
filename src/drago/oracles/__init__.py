"""The exact weights where rows are not arrays: on tensors, and in parts."""
