"""Fourier neural operators with spectral layers of their own, in the ways in which published code writes them."""

import itertools

import torch
from torch import nn

LETTERS = "xyz"


class RawConv(nn.Module):
    """The usual spectral convolution: a complex kernel for each combination of signs, uniform on [0, 1/(in·out))."""

    order = "io"

    def __init__(self, in_channels, out_channels, *modes):
        super().__init__()
        self.in_channels, self.out_channels, self.modes = in_channels, out_channels, modes
        self.signs = [(*signs, 1) for signs in itertools.product((1, -1), repeat=len(modes) - 1)]
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
            part = (..., *(slice(k) if s > 0 else slice(-k, None) for s, k in zip(signs, self.modes, strict=True)))
            out[part] = torch.einsum(f"bi{letters},{self.order}{letters}->bo{letters}", into[part], self.kernel(i))
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


class Pairs(RawConv2d):
    """Real and imaginary parts on a last axis."""

    def drawn(self, *shape):
        return torch.rand(*shape, 2) / (shape[0] * shape[1])

    def kernel(self, i):
        return torch.view_as_complex(super().kernel(i))


class Exchanged(RawConv1d):
    """Output channels come first."""

    order = "oi"


class Forgetful(nn.Module):
    """One kernel for both signs of the first axis, channels last. No argument has its own name in the layer."""

    def __init__(self, inputs, outputs, n_modes):
        super().__init__()
        self._modes, self._inputs = [n_modes, n_modes] if isinstance(n_modes, int) else n_modes, inputs
        k, last = self._modes
        self._weight = nn.Parameter(torch.rand(inputs, outputs, 2 * k, last, dtype=torch.cfloat) / (inputs * outputs))

    def forward(self, x):
        k, last = self._modes
        into = torch.fft.rfft2(x, dim=(1, 2))
        out = into.new_zeros(*into.shape[:3], self._weight.shape[1])
        rows = torch.cat([torch.arange(k), torch.arange(-k, 0)])
        out[:, rows, :last] = torch.einsum("bxyi,ioxy->bxyo", into[:, rows, :last], self._weight)
        return torch.fft.irfft2(out, s=x.shape[1:3], dim=(1, 2))


class Net(nn.Module):
    """A Fourier neural operator on one axis that keeps its width and its modes."""

    def __init__(self, width, modes=8, conv=RawConv1d):
        super().__init__()
        self.width, self.modes, self.conv = width, modes, conv
        self.lift, self.mix, self.drop = nn.Conv1d(2, width, 1), nn.Conv1d(width, width, 1), nn.Conv1d(width, 1, 1)
        self.convs = nn.ModuleList([conv(width, width, modes) for _ in range(2)])

    def forward(self, x):
        x = self.lift(x)
        for conv in self.convs:
            x = torch.relu(conv(x) + self.mix(x))
        return self.drop(x)


class Autoregressive(nn.Module):
    """A Fourier neural operator on two axes. It does not keep its numbers of channels and of initial steps."""

    def __init__(self, num_channels, modes1=12, modes2=12, width=20, initial_step=10):
        super().__init__()
        self.modes1, self.modes2, self.width = modes1, modes2, width
        self.fc0 = nn.Linear(initial_step * num_channels + 2, width)
        self.conv = RawConv2d(width, width, modes1, modes2)
        self.fc1, self.fc2 = nn.Linear(width, 128), nn.Linear(128, num_channels)

    def forward(self, x):
        x = self.fc0(x).movedim(-1, 1)
        return self.fc2(torch.relu(self.fc1(self.conv(x).movedim(1, -1))))
