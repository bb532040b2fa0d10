"""Plans in files, checkpoints of neuralop's, and torch's FSDP2."""
