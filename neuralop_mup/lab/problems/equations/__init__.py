"""Equations in space and time that the problems' models may be trained on, called as neuralop's losses are."""
