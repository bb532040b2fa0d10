"""Compute MuSOAP's update direction from stacked gradients and state.

Gradients are real tensors X of shape (layers, d_1, …, d_r, parts, channels, *modes). d_1 … d_r are the axes of a block,
parts are the real and imaginary parts, and channels do not mix. For each axis of a block, all modes of a layer share one
basis.

All modes have the same update size, so modes without a gradient above the rounding errors would move in random directions.
Sums in float32 have errors of about 1e-7 times the layer's largest gradient, and autocast rounds products below 6e-8 to
zero. Both effects are detected by comparing each mode with the other modes of the layer.
"""

from collections.abc import Sequence
from math import prod, sqrt
from typing import NamedTuple

import torch

# Components below this factor times the root mean square of their mode are damped as rounding errors.
_NOISE = 1e-5
# Sums of squares below this factor times the smallest normal number are treated as imprecise.
_ROOM = 2.0**10
_TINY = 1e-30  # makes 0 / 0 evaluate to 0
# Decay of the Gram matrices.
BASIS_BETA = 0.95


PerAxis = list[torch.Tensor | None]  # one entry per axis of a block


class Scratch:
    """Reusable named memory for temporaries, because allocation on a CPU takes half as long as the products."""

    def __init__(self) -> None:
        self._held: dict[tuple, torch.Tensor] = {}

    def take(self, name: str, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        """Return an uninitialized tensor that uses the memory with this name."""
        key, numel = (name, like.dtype, like.device), prod(shape)
        if key not in self._held or self._held[key].numel() < numel:
            self._held[key] = torch.empty(numel, dtype=like.dtype, device=like.device)
        return self._held[key][:numel].view(shape)

    def copy(self, x: torch.Tensor) -> torch.Tensor:
        """Return a contiguous copy, which overwrites the previous copy."""
        return self.take("permuted", x.shape, x).copy_(x)

    def product(self, q: torch.Tensor, x: torch.Tensor, name: str) -> torch.Tensor:
        """Return the products of the matrices (layers, d, d) and the tensors (layers, d, …)."""
        out = self.take(name, x.shape, x)
        torch.bmm(q, x.flatten(2), out=out.flatten(2))
        return out


class Averages(NamedTuple):
    """Views of the state of the active modes, which are updated in place.

    Attributes
    ----------
    v : torch.Tensor
        Second moments (layers, d_1, …, d_r, channels, *modes).
    grams, bases : list of (torch.Tensor or None)
        Gram matrices and bases (layers, d, d) for each of d_1 … d_r, or None for an axis without a basis.
    low_rank : torch.Tensor or None
        Correction of each mode's operator norm for low-rank updates (layers, 1, …, 1, channels, *modes), or None for blocks
        with one row or column.
    """

    v: torch.Tensor
    grams: PerAxis
    bases: PerAxis
    low_rank: torch.Tensor | None


def update_grams(x: torch.Tensor, grams: PerAxis, scratch: Scratch) -> None:
    """Update C_a ← β C_a + (1 − β) Σ_{modes, parts, other axes} X Xᵀ for each axis with a basis."""
    for axis, c in enumerate(grams):
        if c is not None:
            rows = (scratch.copy(x.movedim(1 + axis, 1)) if axis else x).flatten(2)
            c.baddbmm_(rows, rows.mT, beta=BASIS_BETA, alpha=1 - BASIS_BETA)


def direction(
    x: torch.Tensor,
    nesterov_momentum: torch.Tensor,
    averages: Averages,
    size: float | torch.Tensor,
    scratch: Scratch,
    *,
    beta2: float,
    block: tuple[int, int],
    first: tuple[bool, ...],
    precision: float,
    measure_rank: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute Adam's update in the rotated bases, scaled to the same size for each mode.

    For gradient X and Nesterov momentum M, the update U is

        V ← β₂ V + (1 − β₂) |Qᵀ X|²,        U = gate · size · Q (Qᵀ M / √V) / operator norm.

    Parameters
    ----------
    x, nesterov_momentum : torch.Tensor
        X and M (layers, d_1, …, d_r, parts, channels, *modes), contiguous. M must be the scratch tensor "momentum".
    averages : Averages
        State of the active modes, updated in place.
    size : float or torch.Tensor
        Update size lr √(out/in) of every mode, as one number or as one number per layer (layers, 1, …, 1).
    scratch : Scratch
        Memory for temporaries.
    beta2 : float
        Decay of second moments.
    block : (int, int)
        Sizes of a block, m × n.
    first : tuple of bool
        Whether each of the axes d_1 … d_r belongs to the first side of the block.
    precision : float
        Machine epsilon of the gradient's dtype.
    measure_rank : bool
        Whether to update ``low_rank`` in this step.

    Returns
    -------
    update : torch.Tensor
        Tensor to subtract from the weights, with the shape of ``x``.
    noise_gate : torch.Tensor
        Factor from 0 to 1 on each mode's update (layers, 1, …, 1, channels, *modes).
    """
    r = len(averages.bases)
    parts, mixed = r + 1, tuple(range(1, r + 1))
    noise_gate, has_gradient = _noise_gates(x, r, precision, scratch)
    v = averages.v.movedim(r, 1)  # permuted to (layers, d_r, d_1, …), like rotated tensors
    v.lerp_(_squares(_rotated(x, averages.bases, scratch), parts, scratch), 1 - beta2)
    u = _rotated(nesterov_momentum, averages.bases, scratch)
    m, n = block
    # Adam's divisor, bounded below by the noise level of the mode. For modes without a gradient, it is infinite, because
    # momentum may outlast the second moments.
    floor = torch.where(has_gradient, v.sum(mixed, keepdim=True).sqrt_(), torch.inf)
    root = torch.sqrt(v, out=scratch.take("squares", v.shape, v))
    u.div_(root.add_(floor, alpha=_NOISE / sqrt(m * n)).unsqueeze(parts))
    norm = _squares(u, parts, scratch).sum(mixed, keepdim=True).sqrt_()
    if min(m, n) == 1:  # if channels do not mix, they form one block per mode, and its norm is exact
        norm = norm.amax(parts, keepdim=True)
    else:
        # For random entries, the ratio of Frobenius norm to operator norm, to first order.
        size = size * (sqrt(m * n) / (sqrt(m) + sqrt(n)))
        if averages.low_rank is not None:
            if measure_rank:
                averages.low_rank.copy_(_low_rank(u, norm, block, first, scratch))
            norm.mul_(averages.low_rank)
    u.mul_((noise_gate / norm.add_(_TINY)).mul_(size).unsqueeze(parts))
    return _rotated_back(u, averages.bases, scratch), noise_gate


def _noise_gates(x: torch.Tensor, r: int, precision: float, scratch: Scratch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each mode's gate and whether it has a gradient (layers, 1, …, 1, channels, *modes).

    gate = r² / (r² + (ε max r)²) · n / max n, where r is the norm of a mode's gradient, n is its number of nonzero entries,
    and ε is the precision of the dtype. Maxima are taken over the modes of a layer. The gate is about 1 for a reliable
    gradient, and 0 without a gradient.
    """
    squares = _squares(x, r + 1, scratch)
    mixed, others = tuple(range(1, r + 1)), tuple(range(r + 1, squares.ndim))
    total, least = squares.sum(mixed, keepdim=True), _ROOM * torch.finfo(x.dtype).tiny
    has_gradient = total > least
    if prod(total.shape[1:]) == 1:
        return has_gradient.to(x.dtype), has_gradient
    filled = (squares > 0).sum(mixed, keepdim=True, dtype=x.dtype)
    ratio = total / total.amax(others, keepdim=True).clamp_min_(least)
    noise_gate = ratio.div_(ratio + precision**2).mul_(filled / filled.amax(others, keepdim=True).clamp_min_(1))
    return noise_gate, has_gradient


def _rotated(x: torch.Tensor, bases: PerAxis, scratch: Scratch) -> torch.Tensor:
    """Return Qᵀ x with shape (layers, d_r, d_1, …)."""
    for axis, q in enumerate(bases):
        x = x.movedim(1, len(bases)) if axis else x  # move the next axis to the front
        if q is not None:
            x = scratch.product(q.mT, scratch.copy(x) if axis else x, "rotated")
    return x


def _rotated_back(x: torch.Tensor, bases: PerAxis, scratch: Scratch) -> torch.Tensor:
    """Return Q x with axes in the original order."""
    last = len(bases) - 1
    for axis in reversed(range(len(bases))):
        q = bases[axis]
        if q is not None:
            x = scratch.product(q, x if axis == last else scratch.copy(x), "momentum")
        x = x.movedim(len(bases), 1) if axis else x  # move the last axis to the front
    return x


def _squares(x: torch.Tensor, parts: int, scratch: Scratch) -> torch.Tensor:
    """Return the squared absolute values."""
    first, *rest = x.unbind(parts)
    squares = torch.mul(first, first, out=scratch.take("squares", first.shape, x))
    for part in rest:
        squares.addcmul_(part, part)
    return squares


def _low_rank(
    u: torch.Tensor, norm: torch.Tensor, block: tuple[int, int], first: tuple[bool, ...], scratch: Scratch
) -> torch.Tensor:
    """Return (Σσ⁴)^(1/4) / (Σσ²)^(1/2) relative to its value for random entries, which is larger than 1 at low rank.

    For complex entries of unit variance, E Σσ⁴ = mn(m + n). For real entries, E Σσ⁴ = mn(m + n + 1). ``u`` has shape
    (layers, d_r, d_1, …, d_(r−1), parts, channels, *modes).
    """
    r, (m, n) = len(first), block
    axes = list(zip([*range(2, r + 1), 1], first, strict=True))
    one, other = ([axis for axis, own in axes if own is side] for side in (True, False))
    a = scratch.copy(u.permute(r + 1, 0, *range(r + 2, u.ndim), *one, *other))
    a.div_((norm + _TINY).flatten(0, r).view(*a.shape[1 : u.ndim - r], *(1,) * r))
    of_random = ((m + n + 2 - len(a)) / (m * n)) ** 0.25
    rows, columns = (prod([u.shape[axis] for axis in side]) for side in (one, other))
    powers = _fourth_powers(a.view(len(a), -1, rows, columns), scratch)
    return torch.where(norm > 0, powers.sqrt_().div_(of_random).view(norm.shape), 1.0)


def _fourth_powers(a: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """Return (Σσ⁴)^(1/2) = ‖A Aᴴ‖_F for matrices (parts, batch, m, n), with shape (batch,).

    The product is computed along the shorter side. For A = X + iY, A Aᴴ = (XXᵀ + YYᵀ) + i(YXᵀ − XYᵀ). torch's product of
    complex matrices takes four times as long.
    """
    a = a.mT if a.shape[2] > a.shape[3] else a
    x, y = a[0], a[-1]
    shape = (len(x), x.shape[1], x.shape[1])
    even = torch.bmm(x, x.mT, out=scratch.take("momentum", shape, a))  # the momentum is no longer needed
    if len(a) == 1:
        return torch.linalg.matrix_norm(even)
    mixed = torch.bmm(y, x.mT, out=scratch.take("gradients", shape, a))
    return torch.hypot(torch.linalg.matrix_norm(even.baddbmm_(y, y.mT)), torch.linalg.matrix_norm(mixed - mixed.mT))
