"""Fourier kernels and hidden linear layers as blocks of matrices, and the optimizer that MuMuon and MuSOAP are made of."""
