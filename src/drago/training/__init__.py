"""Training with torch: robust losses of batches, and any differentiable model."""
