"""The fraction of the spectral energy of a data set that a number of Fourier modes keeps.

A proxy cannot learn modes that it does not have, and its best learning rate is then that of a different problem. Therefore
the modes of a proxy should keep nearly all of the energy of the targets. Each channel is normalized, as it is for the model.
Fields may be real or complex, and need not be periodic.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

# Fraction of the targets' energy that the modes of a proxy should keep along each axis. On eight problems, the best Adam
# learning rate of the proxy was within a factor of 1.2 of the target's when more than 99.5 % of the energy was kept, and up
# to 4 times too high when less than 99 % was kept (docs/howto/proxy.md, `python benchmarks/run.py energy`).
ENOUGH = 0.999

_SAMPLES = 256  # number of samples, spread over the data set, that are used to estimate the energy


@dataclass(frozen=True)
class ModeEnergy:
    """Fractions of the spectral energy of fields along each axis.

    Attributes
    ----------
    shares : tuple of tuple of float
        For each axis with n points, the fractions of the energy that ``n_modes`` = 0, 1, …, n keep.
    """

    shares: tuple[tuple[float, ...], ...]

    def kept(self, n_modes: Sequence[int]) -> tuple[float, ...]:
        """Return the fraction of the energy that ``n_modes`` keep along each axis."""
        return tuple(share[min(n, len(share) - 1)] for n, share in zip(n_modes, self.shares, strict=True))

    def enough(self, share: float = ENOUGH) -> tuple[int, ...]:
        """Return the smallest even ``n_modes`` that keep this fraction of the energy along each axis."""
        # The total may be slightly below 1, and an even n_modes never keeps all modes on an odd number of points.
        return tuple(
            next((n for n in range(2, len(kept), 2) if kept[n] >= min(share, kept[-1])), len(kept) - 1)
            for kept in self.shares
        )


def mode_energy(fields: torch.Tensor) -> ModeEnergy:
    """Return the fractions of the spectral energy of fields.

    Parameters
    ----------
    fields : torch.Tensor, shape ``(n, channels, *grid)``
        Real or complex fields, such as targets. Only a few hundred of the samples are used.
    """
    fields = fields[:: -(-len(fields) // _SAMPLES)]
    fields = fields.to(torch.complex128 if fields.is_complex() else torch.float64)
    axes = (0, *range(2, fields.ndim))
    fields = fields - fields.mean(axes, keepdim=True)
    scale = fields.abs().square().mean(axes, keepdim=True).sqrt()
    fields = torch.where(scale > 0, fields / scale, 0)
    result = []
    for axis in range(2, fields.ndim):
        points = fields.shape[axis]
        # The other axes do not need to be transformed (Parseval's theorem).
        energy = torch.fft.fft(fields, dim=axis).abs().square().sum([d for d in range(fields.ndim) if d != axis])
        frequency = (torch.fft.fftfreq(points) * points).round().long()
        # The smallest n_modes for each frequency: a SpectralConv keeps the n frequencies around 0, one more below than above
        # 0 if n is even. The last axis of complex fields is treated like the others, although neuralop 2.0 keeps other
        # frequencies there.
        needed = torch.where(frequency < 0, -2 * frequency, 2 * frequency + 1)
        if axis == fields.ndim - 1 and not fields.is_complex():
            needed = 2 * frequency.abs()  # the spectrum contains the frequencies 0 … n // 2, which represent both signs
        kept = torch.stack([energy[needed <= n].sum() for n in range(points + 1)])
        shares = kept / kept[-1] if kept[-1] > 0 else torch.ones_like(kept)
        result.append(tuple(shares.tolist()))
    return ModeEnergy(tuple(result))


def proxy_advice(energy: ModeEnergy, proxy: Sequence[int], target: Sequence[int]) -> str:
    """Return a warning if the modes of a proxy do not resolve the data, otherwise an empty string.

    Parameters
    ----------
    energy : ModeEnergy
        Spectral energy of the targets.
    proxy, target : sequence of int
        ``n_modes`` of the proxy and of the target. Axes with equal numbers of modes are not checked.
    """
    if not len(proxy) == len(target) == len(energy.shares):
        return ""
    kept, needed = energy.kept(proxy), energy.enough()
    better = [
        n if share >= ENOUGH else max(n, min(t, need)) for n, t, need, share in zip(proxy, target, needed, kept, strict=True)
    ]
    if better == list(proxy):
        return ""
    whole = " of the target, and reduce only the width" if better == list(target) else ""
    return (
        f"The proxy with n_modes = {', '.join(map(str, proxy))} keeps {', '.join(f'{100 * share:.4g} %' for share in kept)} "
        f"of the targets' spectral energy along its axes. Below {100 * ENOUGH:g} %, the best learning rate may not transfer "
        f"to the target. Use n_modes = {', '.join(map(str, better))}{whole}."
    )
