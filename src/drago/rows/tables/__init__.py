"""What DRAGO last saw of each row, in tables: on arrays, on tensors, in parts."""
