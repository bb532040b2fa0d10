"""Checkpoints of neuralop's, plans in files, and torch's FSDP2."""
