"""The direction of MuSOAP, as pure functions of stacked gradients and state.

Gradients are read as real tensors X of shape (layers, d_1, …, d_r, parts, *free, channels, *modes): d_1 … d_r are the axes
of a block that have a basis, for a dense kernel its input and output channels, *free* those that have none, *channels* those
that do not mix, and parts the real and the imaginary one. All modes of a layer and all other axes share an axis's basis.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt

import torch

from neuralop_mup.optim.matrix.noise import TINY
from neuralop_mup.optim.matrix.scratch import Scratch

__all__ = ["SoapSettings", "SoapState", "add_grams", "gradients_of_modes", "soap_direction"]

# Where a gradient has no component its rounding errors must not be taken for one: components this much below the root mean
# square of their mode fade out.
_NOISE = 1e-5


@dataclass(frozen=True)
class SoapSettings:
    """What a direction needs beside its state.

    Attributes
    ----------
    beta2, basis_beta : float
        Decays of second moments and of Gram matrices.
    block : (int, int)
        Sizes of a block, m × n.
    first : tuple of bool
        For each of d_1 … d_r and of the free axes, whether it belongs to the first side of the block.
    n_axes : int
        r.
    has_modes : bool
        Whether a layer has several modes that move at this step, in this piece or in others.
    measure_rank : bool
        Whether the ratio of the two sizes of ``schatten`` is looked for at this step.
    """

    beta2: float
    basis_beta: float
    block: tuple[int, int]
    first: tuple[bool, ...]
    n_axes: int
    has_modes: bool
    measure_rank: bool


@dataclass
class SoapState:
    """Averages of the modes of a piece, changed in place; each may be a view.

    Attributes
    ----------
    v : torch.Tensor
        Second moments (layers, d_1, …, d_r, *free, channels, *modes).
    grams, bases : list of (torch.Tensor or None)
        (layers, d, d) for each of d_1 … d_r, None for an axis of size 1 that stands for none.
    low_rank : torch.Tensor or None
        For each mode (layers, channels, *modes) the factor of ``size="schatten"``; None for ``"rms"``.
    """

    v: torch.Tensor
    grams: list[torch.Tensor | None]
    bases: list[torch.Tensor | None]
    low_rank: torch.Tensor | None


def add_grams(x: torch.Tensor, grams: list[torch.Tensor | None], beta: float, alpha: float, scratch: Scratch) -> None:
    """C_a ← beta C_a + alpha Σ_{modes, parts, other axes} X Xᵀ for each axis that has a basis; ``x`` stays."""
    for axis, c in enumerate(grams):
        if c is not None:
            rows = x.movedim(1 + axis, 1)
            rows = scratch.take("turned", rows.shape, x).copy_(rows) if axis else rows
            c.baddbmm_(rows.flatten(2), rows.flatten(2).mT, beta=beta, alpha=alpha)


def gradients_of_modes(x: torch.Tensor, settings: SoapSettings, scratch: Scratch) -> tuple[torch.Tensor, torch.Tensor]:
    """Σ|X|² of each mode, and how many of its numbers, complex ones whole, are not zero (layers, channels, *modes).

    The latter is not looked at where a layer has one mode, which can be compared with nothing.
    """
    mixed = tuple(range(1, 1 + len(settings.first)))
    squares = _squares(x, settings.n_axes + 1, scratch)
    total = squares.sum(mixed)
    return total, (squares > 0).sum(mixed, dtype=x.dtype) if settings.has_modes else total


def soap_direction(
    ahead: torch.Tensor,
    x: torch.Tensor,
    state: SoapState,
    settings: SoapSettings,
    share: torch.Tensor,
    sound: torch.Tensor,
    size: float | torch.Tensor,
    scratch: Scratch,
) -> torch.Tensor:
    """Adam in the bases, each mode brought to one size.

    With X the gradient and M what is moved along,

        V ← β₂ V + (1 − β₂) |Qᵀ X|²,        U = share · size · Q (Qᵀ M / √V) / operator norm.

    Parameters
    ----------
    ahead : torch.Tensor
        M (layers, d_1, …, d_r, parts, *free, channels, *modes), contiguous; overwritten.
    x : torch.Tensor
        X likewise.
    state : SoapState
    settings : SoapSettings
    share, sound : torch.Tensor
        How much of its update each mode is worth, and whether it has a gradient at all (layers, channels, *modes).
    size : float or torch.Tensor
        What every mode's update is brought to, lr √(out/in): one number, or one for each layer (layers, 1, …, 1).
    scratch : Scratch
        Where temporaries live.

    Returns
    -------
    torch.Tensor
        What is to be subtracted, of the shape of ``ahead``.
    """
    r, n_axes = len(state.bases), len(settings.first)
    parts, mixed = r + 1, tuple(range(1, 1 + n_axes))  # where parts are; the axes of a block without them
    share, sound = (known.view(len(ahead), *(1,) * n_axes, *known.shape[1:]) for known in (share, sound))
    v, free = state.v.movedim(r, 1), scratch.take("turned", (ahead.numel(),), ahead)
    turned, free = _rotated(x, state.bases, free)
    v.lerp_(_squares(turned, parts, scratch), 1 - settings.beta2)
    u, free = _rotated(ahead, state.bases, free)  # (layers, d_r, d_1, …), and so is V
    # What Adam divides by, never below the noise of its mode; infinite where there is no gradient, so that momentum, which
    # may have outlived all second moments, moves nothing.
    floor = torch.where(sound, v.sum(mixed, keepdim=True).sqrt_(), torch.inf)
    root = torch.sqrt(v, out=scratch.take("squares", v.shape, u))
    root.add_(floor, alpha=_NOISE / sqrt(prod(settings.block)))
    u.div_(root.unsqueeze(parts))
    norm = _norm(u, parts, mixed, state, settings, scratch, (free, turned.view(-1)))
    factor = torch.div(share, norm.add_(TINY)).mul_(size / _of_random(*settings.block))
    u.mul_(factor.unsqueeze(parts))
    return _rotated_back(u, state.bases, free)


def _rotated(x: torch.Tensor, bases: list[torch.Tensor | None], free: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Qᵀ x along all axes, the last one first, and memory of as many numbers that is free then."""
    r, memory = len(bases), x.view(-1)
    for axis, q in enumerate(bases):
        if q is not None:
            out = free.view(x.shape)
            torch.bmm(q.mT, x.flatten(2), out=out.flatten(2))
            x, memory, free = out, free, memory
        if axis + 1 < r:  # the next axis to the front
            turned = x.permute(0, *range(2, r + 1), 1, *range(r + 1, x.ndim))
            x, memory, free = free.view(turned.shape).copy_(turned), free, memory
    return x, free


def _rotated_back(x: torch.Tensor, bases: list[torch.Tensor | None], free: torch.Tensor) -> torch.Tensor:
    """The reverse: Q x along all axes, which are then in their own order."""
    r, memory = len(bases), x.view(-1)
    for axis, q in reversed(list(enumerate(bases))):
        if q is not None:
            out = free.view(x.shape)
            torch.bmm(q, x.flatten(2), out=out.flatten(2))
            x, memory, free = out, free, memory
        if axis > 0:  # the last axis to the front
            turned = x.permute(0, r, *range(1, r), *range(r + 1, x.ndim))
            x, memory, free = free.view(turned.shape).copy_(turned), free, memory
    return x


def _squares(x: torch.Tensor, parts: int, scratch: Scratch) -> torch.Tensor:
    """Squared moduli."""
    first, *rest = x.unbind(parts)
    squares = torch.mul(first, first, out=scratch.take("squares", first.shape, x))
    for part in rest:
        squares.addcmul_(part, part)
    return squares


def _of_random(m: int, n: int) -> float:
    """Operator norm over Frobenius norm of a block of random entries, a first-order estimate: about √m + √n over √(mn)."""
    return 1.0 if min(m, n) == 1 else (sqrt(m) + sqrt(n)) / sqrt(m * n)


def _norm(
    u: torch.Tensor,
    parts: int,
    mixed: tuple[int, ...],
    state: SoapState,
    settings: SoapSettings,
    scratch: Scratch,
    free: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """The norm by which operator norms are estimated: Frobenius', for ``schatten`` brought to that of low rank."""
    m, n = settings.block
    norm = _squares(u, parts, scratch).sum(mixed, keepdim=True).sqrt_()
    if min(m, n) == 1:
        channels = len(mixed) + 1
        # Channels that do not mix are one block of a mode, of which the norm is exact.
        return norm.amax(channels, keepdim=True).expand_as(norm).clone()
    if state.low_rank is not None:
        ratio = state.low_rank.view(len(u), *(1,) * len(mixed), *state.low_rank.shape[1:])
        if settings.measure_rank:
            ratio.copy_(_low_rank(u, norm, parts, settings, free))
        norm.mul_(ratio)
    return norm


def _low_rank(
    u: torch.Tensor, norm: torch.Tensor, parts: int, settings: SoapSettings, free: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """(Σσ⁴)^(1/4) over (Σσ²)^(1/2), and that over its value for random entries: 1 at full rank, more at low rank.

    Complex entries of unit variance have E Σσ⁴ = mn(m + n), real ones mn(m + n + 1). ``u`` is (layers, d_r, d_1, …, d_(r−1),
    parts, *free, …).
    """
    m, n = settings.block
    axes = [*range(2, parts), 1, *range(parts + 1, 1 + len(settings.first) + 1)]
    one = [axis for axis, first in zip(axes, settings.first, strict=True) if first]
    other = [axis for axis, first in zip(axes, settings.first, strict=True) if not first]
    batch = [0, *range(2 + len(settings.first), u.ndim)]
    a = u.permute(parts, *batch, *one, *other)
    a = free[0].view(a.shape).copy_(a)
    a.div_(
        norm.squeeze(tuple(range(1, 1 + len(settings.first))))
        .add(TINY)
        .view(*a.shape[1 : 1 + len(batch)], *(1,) * len(axes))
    )
    a = a.view(len(a), -1, prod(u.shape[axis] for axis in one), prod(u.shape[axis] for axis in other))
    of_random = ((m + n + 2 - len(a)) / (m * n)) ** 0.25
    ratio = _fourth_powers(a, free[1]).sqrt_().div_(of_random).view(norm.shape)
    return torch.where(norm > 0, ratio, 1.0)


def _fourth_powers(a: torch.Tensor, free: torch.Tensor) -> torch.Tensor:
    """(Σσ⁴)^(1/2) = ‖A Aᴴ‖_F of matrices (parts, batch, m, n): (batch,), from products of the shorter side.

    With A = X + iY, A Aᴴ = (XXᵀ + YYᵀ) + i(YXᵀ − XYᵀ); torch's own product of complex matrices takes four times as long.
    """
    if a.shape[2] > a.shape[3]:
        a = a.mT
    shape = (a.shape[1], a.shape[2], a.shape[2])
    even = torch.bmm(a[0], a[0].mT, out=free[: prod(shape)].view(shape))
    if len(a) == 1:
        return torch.linalg.matrix_norm(even)
    x, y = a
    even.baddbmm_(y, y.mT)
    mixed = torch.bmm(y, x.mT, out=free[prod(shape) : 2 * prod(shape)].view(shape))
    return torch.hypot(torch.linalg.matrix_norm(even), torch.linalg.matrix_norm(mixed - mixed.mT))
