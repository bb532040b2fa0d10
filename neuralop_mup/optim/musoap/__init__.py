"""The MuSOAP optimizer, which updates Fourier kernels and hidden linear layers as blocks of matrices."""
