"""How much of a data set's energy a number of Fourier modes keeps: whether a proxy's modes resolve what it is tuned on.

Where the best learning rate moves with the number of modes, the proxy does not resolve the data: it cannot learn the modes
that it lacks, and its best learning rate is that of another problem. So the modes of a proxy should keep nearly all of the
targets' energy. The fields are taken as they are, real or complex, periodic or not, since the model's own transform takes
them so; each channel without its mean and over its standard deviation, as the model sees them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from neuralop_mup.errors import MupError

__all__ = ["ENOUGH", "ModeEnergy", "mode_energy", "off_grid", "proxy_advice"]

# Share of the targets' energy that a proxy's modes must keep on each axis. Measured on one 1D problem so far: with 90 % the
# best learning rate of Adam was 4 times the target's, with 99.93 % and more it stayed within a grid step of √2 to 2.
# `python benchmarks/proxy_energy.py` measures it on the problems of the suite.
ENOUGH = 0.999

_SAMPLES = 256  # spread over the data set; a share of energy is a mean over them
_GRAPHS = ("input_geom", "latent_queries", "output_queries", "edge_index", "geometry", "mesh")


@dataclass(frozen=True)
class ModeEnergy:
    """Shares of spectral energy, on each axis by itself.

    Attributes
    ----------
    inputs, targets : tuple of tuple of float
        For each axis, the share that the modes of frequency 0 … K keep, either sign, for K = 0, 1, …, Nyquist's.
    """

    inputs: tuple[tuple[float, ...], ...]
    targets: tuple[tuple[float, ...], ...]

    def kept(self, modes: Sequence[int], of: str = "targets") -> tuple[float, ...]:
        """Share that K modes per sign keep, on each axis."""
        return tuple(share[min(k, len(share) - 1)] for k, share in zip(modes, getattr(self, of), strict=True))

    def enough(self, share: float = ENOUGH) -> tuple[int, ...]:
        """The smallest K on each axis that keeps this share of the targets' energy."""
        # Rounding may leave the sum of all a little below 1.
        return tuple(next(k for k, kept in enumerate(axis) if kept >= min(share, axis[-1])) for axis in self.targets)


def mode_energy(x: torch.Tensor, y: torch.Tensor) -> ModeEnergy:
    """Energy of inputs and targets over the modes of each axis.

    Parameters
    ----------
    x, y : torch.Tensor
        Shape ``(n, channels, *grid)``, real or complex. Of many samples some hundred are read.

    Raises
    ------
    MupError
        If the fields have no grid.
    """
    for name, values in (("x", x), ("y", y)):
        if not isinstance(values, torch.Tensor) or values.ndim < 3 or min(values.shape) == 0:
            shape = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
            raise MupError(
                f"{name} is {shape}, and fields on a grid have the shape (samples, channels, *grid): the energy of Fourier "
                "modes is not defined for graphs and meshes, so how many modes a proxy needs has to be tried."
            )
    return ModeEnergy(_shares(x), _shares(y))


def _shares(fields: torch.Tensor) -> tuple[tuple[float, ...], ...]:
    fields = fields[:: -(-len(fields) // _SAMPLES)]
    fields = fields.to(torch.complex128 if fields.is_complex() else torch.float64)
    axes = (0, *range(2, fields.ndim))
    fields = fields - fields.mean(axes, keepdim=True)
    scale = fields.abs().square().mean(axes, keepdim=True).sqrt()
    fields = torch.where(scale > 0, fields / scale, 0)
    result = []
    for axis in range(2, fields.ndim):
        n = fields.shape[axis]
        # By Parseval's theorem the other axes need no transform: every mode of theirs is counted.
        energy = torch.fft.fft(fields, dim=axis).abs().square().sum([d for d in range(fields.ndim) if d != axis])
        frequency = (torch.fft.fftfreq(n) * n).abs().round().long()
        by_frequency = torch.zeros(n // 2 + 1, dtype=torch.float64).index_add_(0, frequency, energy)
        whole = by_frequency.sum()
        shares = by_frequency.cumsum(0) / whole if whole > 0 else torch.ones_like(by_frequency)
        result.append(tuple(shares.tolist()))
    return tuple(result)


def off_grid(sample: Mapping[str, Any]) -> bool:
    """Whether a batch is of graphs or meshes, where modes of the data mean nothing."""
    fields = [sample.get("x"), sample.get("y")]
    gridded = all(isinstance(v, torch.Tensor) and v.ndim >= 3 for v in fields)
    return not gridded or fields[0].ndim != fields[1].ndim or any(key in sample for key in _GRAPHS)


def proxy_advice(energy: ModeEnergy, proxy: Sequence[int], target: Sequence[int], flag: str | None = None) -> str:
    """What to change where a proxy's modes do not resolve the data; empty where they do.

    Parameters
    ----------
    energy : ModeEnergy
    proxy, target : sequence of int
        ``n_modes`` of the two. An axis on which the proxy has as many as the target is no concern: nothing moves there.
    flag : str, optional
        The option that sets the proxy's modes, where there is one.
    """
    if len(proxy) != len(energy.targets) or len(target) != len(energy.targets):
        return ""
    modes = [n // 2 for n in proxy]
    kept, needed = energy.kept(modes), energy.enough()
    short = [i for i, share in enumerate(kept) if proxy[i] < target[i] and share < ENOUGH]
    if not short:
        return ""
    better = [
        max(n, min(2 * k, t)) if i in short else n for i, (n, k, t) in enumerate(zip(proxy, needed, target, strict=True))
    ]
    axes = ", ".join(f"{100 * kept[i]:.3g} % on axis {i} (K = {modes[i]})" for i in short)
    beyond = [i for i in short if 2 * needed[i] > target[i]]
    text = (
        f"The proxy's modes keep too little of the targets' spectral energy: {axes}, where {100 * ENOUGH:g} % is needed for "
        "its best learning rate to be the target's. "
    )
    if tuple(better) != tuple(proxy):
        if flag is None:
            text += f"Give it n_modes = {', '.join(map(str, better))}."
        else:
            alike = len(set(better)) == 1
            text += f"Give it {flag} {better[0] if alike else ','.join(map(str, better))}."
    if beyond:
        what = f"axis {', '.join(map(str, beyond))}"
        text += f" On {what} the target itself keeps less than that; there the proxy can be narrower, but not coarser."
    return text
