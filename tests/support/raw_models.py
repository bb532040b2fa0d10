"""Fourier neural operators with spectral layers of their own, as published code writes them, in small."""

import itertools

import torch
from torch import nn

LETTERS = "xyz"


class RawConv(nn.Module):
    """The usual spectral convolution: a complex kernel for each combination of signs, drawn from U[0, 1/(in·out))."""

    def __init__(self, in_channels, out_channels, *modes):
        super().__init__()
        self.in_channels, self.out_channels, self.modes = in_channels, out_channels, modes
        self.signs = [*itertools.product((1, -1), repeat=len(modes) - 1)]
        for i in range(len(self.signs)):
            setattr(self, f"weights{i + 1}", nn.Parameter(self.drawn(in_channels, out_channels, *modes)))

    def drawn(self, *shape):
        return torch.rand(*shape, dtype=torch.cfloat) / (shape[0] * shape[1])

    def kernel(self, i):
        return getattr(self, f"weights{i + 1}")

    def forward(self, x):
        grid, axes = x.shape[2:], tuple(range(2, x.ndim))
        into, letters = torch.fft.rfftn(x, dim=axes), LETTERS[: len(axes)]
        out = into.new_zeros(len(x), self.out_channels, *into.shape[2:])
        for i, signs in enumerate(self.signs):
            part = (..., *(slice(k) if s > 0 else slice(-k, None) for s, k in zip((*signs, 1), self.modes, strict=True)))
            out[part] = torch.einsum(f"bi{letters},io{letters}->bo{letters}", into[part], self.kernel(i))
        return torch.fft.irfftn(out, s=grid, dim=axes)


class RawConv1d(RawConv):
    def __init__(self, in_channels, out_channels, modes1):
        super().__init__(in_channels, out_channels, modes1)
        self.modes1 = modes1


class RawConv2d(RawConv):
    def __init__(self, in_channels, out_channels, modes1, modes2):
        super().__init__(in_channels, out_channels, modes1, modes2)
        self.modes1, self.modes2 = modes1, modes2


class RawConv3d(RawConv):
    def __init__(self, in_channels, out_channels, modes1, modes2, modes3):
        super().__init__(in_channels, out_channels, modes1, modes2, modes3)
        self.modes1, self.modes2, self.modes3 = modes1, modes2, modes3
