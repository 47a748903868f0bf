"""What is written to disk: archives, checkpoints, models."""
