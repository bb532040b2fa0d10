"""Fourier kernels and hidden linear layers as blocks of matrices, and the optimizer for them."""
