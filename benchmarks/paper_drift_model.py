"""The FNO of physics_informed, the code that the paper builds on, written anew and made known to neuralop_mup.

Read in ``models/fourier2d.py`` and ``models/basics.py`` of github.com/neuraloperator/physics_informed: coordinates beside
the input, one linear map as the lifting, Fourier layers with a pointwise map beside them and no channel MLP, GELU after
each of them but the last, a readout of one hidden layer. A kernel has K × K modes for either sign of the first frequency,
drawn as U[0, 1) / (in · out) in real and imaginary part. K counts modes per sign.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad

import neuralop_mup as nm

__all__ = ["FourierKernel", "PhysicsInformedFNO"]


class _GELU(torch.autograd.Function):
    """x Φ(x), exact. On a CPU the backward of torch's own takes seven times its forward; here they are alike."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        below = torch.erf(x * 0.5**0.5).add_(1).mul_(0.5)
        ctx.save_for_backward(x, below)
        return x * below

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        x, below = ctx.saved_tensors
        return (x * x).mul_(-0.5).exp_().mul_(x).mul_((2 * math.pi) ** -0.5).add_(below).mul_(grad)


class _Products(torch.autograd.Function):
    """``torch.bmm`` with its operands in order of memory, backward as well: else it goes through them one by one."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        return torch.bmm(a, b)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = ctx.saved_tensors
        grad = grad.contiguous()
        return torch.bmm(grad, b.mT.contiguous()), torch.bmm(a.mT.contiguous(), grad)


class FourierKernel(nn.Module):
    """``irfft2(R · rfft2(x))`` over the K × K lowest modes of either sign of the first frequency.

    Transforms are products with matrices of cosines and sines: for few modes that is a fraction of a whole FFT, and on one
    core no slower for many. ``slow_forward`` is the same with FFTs, as physics_informed has it.

    Parameters
    ----------
    channels : int
    modes : int
        K on each axis; a grid needs at least 2K points, or the two signs would overlap.
    """

    def __init__(self, channels: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        # The first draw of physics_informed, positive and without K in it. There each sign of the first frequency has a
        # complex tensor of its own; the axes here, (2K, K, in, [Re, Im], out), are those of a product without copies.
        # To Adam it is the same: torch moves real and imaginary parts by themselves.
        self.weight = nn.Parameter(torch.rand(2 * modes, modes, channels, 2, channels) / channels**2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Fields of shape ``(batch, channels, n1, n2)`` to the same shape."""
        k, (batch, channels, n1, n2) = self.modes, x.shape
        rows, columns, back = (waves.to(x) for waves in _waves(k, n1, n2))
        # x̂(k1, k2) = Σ x e^{-i(k1 x1 + k2 x2)}, by cosines and sines of |k1| x1 (rows) and of k2 x2 (columns).
        parts = (rows @ (x @ columns)).view(batch, channels, 2, k + 1, 2, k)
        (cc, cs), (sc, ss) = (part.unbind(3) for part in parts.unbind(2))
        real = torch.cat([(cc - ss)[:, :, :k], (cc + ss)[:, :, 1:]], 2)  # k1 = 0 … K-1 and -1 … -K
        imaginary = torch.cat([-(cs + sc)[:, :, :k], (sc - cs)[:, :, 1:]], 2)
        modes = torch.stack([real, imaginary]).permute(3, 4, 0, 1, 2).reshape(2 * k * k, 2 * batch, channels)
        mixed = _Products.apply(modes, self.weight.view(2 * k * k, channels, 2 * channels))
        (rr, ri), (ir, ii) = (part.unbind(3) for part in mixed.view(2 * k, k, 2, batch, 2, channels).unbind(2))
        real, imaginary = ((rr - ii).permute(2, 3, 0, 1), (ri + ir).permute(2, 3, 0, 1))  # (batch, channels, 2K, K)
        # Re ẑ e^{i(k1 x1 + k2 x2)} = cos(k2 x2) (Re cos - Im sin) - sin(k2 x2) (Re sin + Im cos), of k1 x1 each; both signs
        # of k1 share cos(|k1| x1), and have opposite sines.
        (a, b), (c, d) = ((pad(p[:, :, :k], (0, 0, 0, 1)), pad(p[:, :, k:], (0, 0, 1, 0))) for p in (real, imaginary))
        grouped = torch.cat([torch.cat([a + b, -c - d], 3), torch.cat([d - c, b - a], 3)], 2)
        return (rows.T @ grouped) @ back

    def slow_forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same by FFTs, for comparison."""
        k, (n1, n2) = self.modes, x.shape[-2:]
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros_like(spectrum)
        kernel = torch.complex(*self.weight.unbind(3))
        for part, side in ((kernel[:k], slice(k)), (kernel[k:].flip(0), slice(-k, None))):
            out[:, :, side, :k] = torch.einsum("bixy,xyio->boxy", spectrum[:, :, side, :k], part)
        return torch.fft.irfft2(out, s=(n1, n2))


@lru_cache
def _waves(k: int, n1: int, n2: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cosines, sines: of |k1| = 0 … K as rows (2K + 2, n1), of k2 = 0 … K-1 as columns (n2, 2K), and back (2K, n2)."""
    sizes = ((k + 1, n1), (k, n2))
    first, second = (2 * math.pi / n * torch.arange(m).double()[:, None] * torch.arange(n) for m, n in sizes)
    # A real inverse transform counts every k2 twice, for both of its signs, but 0 and Nyquist's.
    twice = torch.tensor([1.0 if 2 * i in (0, n2) else 2.0 for i in range(k)])[:, None] / (n1 * n2)
    waves = torch.cat([second.cos(), second.sin()])
    return torch.cat([first.cos(), first.sin()]), waves.T, waves * twice.repeat(2, 1)


class PhysicsInformedFNO(nn.Module):
    """The whole model in two dimensions.

    Parameters
    ----------
    modes : int
        K on each axis.
    width : int
        Channels of the Fourier layers.
    layers : int
    readout_width : int
        Hidden channels of the readout, physics_informed's ``fc_dim``.
    """

    def __init__(self, modes: int, width: int, layers: int = 4, readout_width: int = 128) -> None:
        super().__init__()
        self.lifting = nn.Linear(3, width)
        self.kernels = nn.ModuleList(FourierKernel(width, modes) for _ in range(layers))
        self.skips = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))
        self.readout_in = nn.Linear(width, readout_width)
        self.readout_out = nn.Linear(readout_width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Coefficients ``(batch, 1, n1, n2)`` to solutions of the same shape."""
        axes = (torch.linspace(0, 1, n, dtype=x.dtype, device=x.device) for n in x.shape[-2:])
        points = torch.stack(torch.meshgrid(*axes, indexing="ij")).expand(len(x), -1, -1, -1)
        v = _pointwise(self.lifting, torch.cat([x, points], dim=1))
        for number, (kernel, skip) in enumerate(zip(self.kernels, self.skips, strict=True), 1):
            v = kernel(v) + _pointwise(skip, v)
            v = v if number == len(self.kernels) else _GELU.apply(v)
        return _pointwise(self.readout_out, _GELU.apply(_pointwise(self.readout_in, v)))


def _pointwise(layer: nn.Linear | nn.Conv1d, x: torch.Tensor) -> torch.Tensor:
    """A linear map of channels at every point, whatever axis torch's layer expects them on."""
    weight = layer.weight.flatten(1)
    return (weight @ x.flatten(2) + layer.bias[:, None]).unflatten(2, x.shape[2:])


nm.register_layer(
    FourierKernel, {"weight": nm.Param("spectral", ("modes", "modes_single", "in", "pair", "out"), init="positive")}
)
# The readout's hidden layer has a size of its own, so that the map from the width into it is where the width ends.
nm.register_layer(
    PhysicsInformedFNO,
    {
        "lifting": nm.Place(False, True),
        "kernels": nm.Place(True, True),
        "skips": nm.Place(True, True),
        "readout_in": nm.Place(True, False),
        "readout_out": nm.Place(False, False),
    },
)
