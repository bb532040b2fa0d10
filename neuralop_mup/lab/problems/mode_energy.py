"""How much of a data set's energy a number of Fourier modes keeps: whether a proxy's modes resolve what it is tuned on.

Where the best learning rate moves with the number of modes, the proxy does not resolve the data: it cannot learn the modes
that it lacks, and its best learning rate is that of another problem. So the modes of a proxy should keep nearly all of the
targets' energy. The fields are taken as they are, real or complex, periodic or not, since the model's own transform takes
them so; each channel without its mean and over its standard deviation, as the model sees them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

# Share of the targets' energy that a proxy's modes must keep on each axis. On eight problems the best learning rate of Adam
# was within a factor of 1.2 of the target's from 99.5 % on, and up to 4 times too high below 99 %
# (docs/howto/proxy.md, `python benchmarks/run.py energy`).
ENOUGH = 0.999

_SAMPLES = 256  # spread over the data set; a share of energy is a mean over them


@dataclass(frozen=True)
class ModeEnergy:
    """Shares of the spectral energy of fields, on each axis by itself.

    Attributes
    ----------
    shares : tuple of tuple of float
        For each axis, the share that ``n_modes`` = 0, 1, …, the number of its points keep.
    """

    shares: tuple[tuple[float, ...], ...]

    def kept(self, n_modes: Sequence[int]) -> tuple[float, ...]:
        """Share of the energy that ``n_modes`` keep, on each axis."""
        return tuple(share[min(n, len(share) - 1)] for n, share in zip(n_modes, self.shares, strict=True))

    def enough(self, share: float = ENOUGH) -> tuple[int, ...]:
        """The smallest even ``n_modes`` on each axis that keep this share of the energy."""
        # Rounding may leave the sum of all a little below 1, and an odd number of points has no even n_modes for all.
        return tuple(
            next((n for n in range(2, len(kept), 2) if kept[n] >= min(share, kept[-1])), len(kept) - 1)
            for kept in self.shares
        )


def mode_energy(fields: torch.Tensor) -> ModeEnergy:
    """Energy over the modes of each axis.

    Parameters
    ----------
    fields : torch.Tensor
        Shape ``(n, channels, *grid)``, real or complex, such as targets. Of many samples some hundred are read.
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
        # According to Parseval's theorem, the other axes need no transform: every mode of theirs is counted.
        energy = torch.fft.fft(fields, dim=axis).abs().square().sum([d for d in range(fields.ndim) if d != axis])
        frequency = (torch.fft.fftfreq(points) * points).round().long()
        both_signs = axis == fields.ndim - 1 and not fields.is_complex()
        kept = torch.stack([energy[_is_kept(frequency, n, both_signs)].sum() for n in range(points + 1)])
        shares = kept / kept[-1] if kept[-1] > 0 else torch.ones_like(kept)
        result.append(tuple(shares.tolist()))
    return ModeEnergy(tuple(result))


def _is_kept(frequency: torch.Tensor, n: int, both_signs: bool) -> torch.Tensor:
    """Which frequencies a ``SpectralConv`` with n modes on an axis keeps.

    On the last axis of real fields half the spectrum is stored, frequencies 0 … n // 2, and stands for both signs. On other
    axes n of them are cut out around 0: where n is even there is one more below 0 than above. (On the last axis of complex
    fields neuralop 2.0 takes the first n of the spectrum as it is ordered then; here it counts as the others.)
    """
    if both_signs:
        return frequency.abs() <= n // 2
    return (frequency >= -(n // 2)) & (frequency <= (n - 1) // 2)


def proxy_advice(energy: ModeEnergy, proxy: Sequence[int], target: Sequence[int]) -> str:
    """What to change where a proxy's modes do not resolve the data; empty where they do.

    Parameters
    ----------
    energy : ModeEnergy
        Of targets.
    proxy, target : sequence of int
        ``n_modes`` of the two. An axis on which the proxy has as many as the target is no concern: nothing moves there.
    """
    if not len(proxy) == len(target) == len(energy.shares):
        return ""
    kept, needed = energy.kept(proxy), energy.enough()
    better = [
        n if share >= ENOUGH else max(n, min(t, need)) for n, t, need, share in zip(proxy, target, needed, kept, strict=True)
    ]
    if better == list(proxy):
        return ""
    return (
        f"The proxy's n_modes = {', '.join(map(str, proxy))} keep {', '.join(f'{100 * share:.4g} %' for share in kept)} of "
        f"the targets' spectral energy, axis by axis, where {100 * ENOUGH:g} % is needed for its best rate to be the "
        f"target's: give it n_modes = {', '.join(map(str, better))}."
    )
