"""The FNO of physics_informed, the code that the paper builds on, written anew and made known to neuralop_mup.

Read in ``models/fourier2d.py`` and ``models/basics.py`` of github.com/neuraloperator/physics_informed: coordinates beside
the input, one linear map as the lifting, Fourier layers with a pointwise map beside them and no channel MLP, GELU after
each of them but the last, a readout of one hidden layer. A kernel has K × K modes for either sign of the first frequency,
drawn as U[0, 1) / (in · out) in real and imaginary part.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import gelu

import neuralop_mup as nm


class FourierKernel(nn.Module):
    """``irfft2(R · rfft2(x))`` over the K × K lowest modes of either sign of the first frequency.

    Parameters
    ----------
    channels : int
    modes : int
        K on each axis; a grid needs at least 2K points, or the two signs would overlap.
    """

    def __init__(self, channels: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        # The first draw of physics_informed, positive and without K in it; 2K rows: K of either sign of the first frequency.
        self.weight = nn.Parameter(torch.rand(2 * modes, modes, channels, 2, channels) / channels**2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Fields of shape ``(batch, channels, n1, n2)`` to the same shape."""
        k, (n1, n2) = self.modes, x.shape[-2:]
        spectrum, kernel = torch.fft.rfft2(x), torch.view_as_complex(self.weight.transpose(3, 4).contiguous())
        out = torch.zeros_like(spectrum)
        for part, side in ((kernel[:k], slice(k)), (kernel[k:].flip(0), slice(-k, None))):
            out[:, :, side, :k] = torch.einsum("bixy,xyio->boxy", spectrum[:, :, side, :k], part)
        return torch.fft.irfft2(out, s=(n1, n2))


class PhysicsInformedFNO(nn.Module):
    """The whole model in two dimensions, with the names of neuralop's arguments.

    Parameters
    ----------
    n_modes : tuple of int
        2K on each axis, the same on both.
    hidden_channels, n_layers : int
    readout_width : int
        Hidden channels of the readout, physics_informed's ``fc_dim``.
    """

    def __init__(self, n_modes: tuple[int, ...], hidden_channels: int, n_layers: int = 4, readout_width: int = 32) -> None:
        super().__init__()
        # Kept under their own names: by them neuralop_mup finds out which dimensions grow.
        self.n_modes, self.hidden_channels, self.n_layers, self.readout_width = (
            n_modes,
            hidden_channels,
            n_layers,
            readout_width,
        )
        width = hidden_channels
        self.lifting = nn.Linear(3, width)
        self.kernels = nn.ModuleList(FourierKernel(width, n_modes[0] // 2) for _ in range(n_layers))
        self.skips = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(n_layers))
        self.readout_in = nn.Linear(width, readout_width)
        self.readout_out = nn.Linear(readout_width, 1)

    def forward(self, x: torch.Tensor, **_: object) -> torch.Tensor:
        """Coefficients ``(batch, 1, n1, n2)`` to solutions of the same shape."""
        axes = (torch.linspace(0, 1, n, dtype=x.dtype, device=x.device) for n in x.shape[-2:])
        points = torch.stack(torch.meshgrid(*axes, indexing="ij")).expand(len(x), -1, -1, -1)
        v = _pointwise(self.lifting, torch.cat([x, points], dim=1))
        for number, (kernel, skip) in enumerate(zip(self.kernels, self.skips, strict=True), 1):
            v = kernel(v) + _pointwise(skip, v)
            v = v if number == len(self.kernels) else gelu(v)
        return _pointwise(self.readout_out, gelu(_pointwise(self.readout_in, v)))


def _pointwise(layer: nn.Linear | nn.Conv1d, x: torch.Tensor) -> torch.Tensor:
    """A linear map of channels at every point, whatever axis torch's layer expects them on."""
    weight = layer.weight.flatten(1)
    return (weight @ x.flatten(2) + layer.bias[:, None]).unflatten(2, x.shape[2:])


nm.register_layer(
    FourierKernel, {"weight": nm.Param("spectral", ("modes", "modes_single", "in", "pair", "out"), init="positive")}
)
