"""Measure how features and kernels change in a step and how these changes depend on model size."""
