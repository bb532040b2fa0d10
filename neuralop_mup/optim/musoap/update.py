"""The direction of MuSOAP, as pure functions of stacked gradients and state.

Gradients are read as real tensors X of shape (layers, d_1, …, d_r, parts, channels, *modes): d_1 … d_r are the axes of a
block, for a dense kernel its input and output channels, *channels* those that do not mix, and parts the real and the
imaginary one. All modes of a layer and all other axes share an axis's basis.

Modes of which a gradient holds rounding errors alone would, all being brought to one size, be moved as far as any other, in
random directions. Rounding shows in two ways. What a sum of float32 numbers leaves is about 1e-7 of the layer's largest
gradient. Where a product was made in half precision, as under autocast, numbers below 6e-8 become exactly zero, and what is
left of the others is coarse. Both are looked at in relation to the layer's other modes, so that neither the loss's scale nor
channels that are always zero change anything.
"""

from collections.abc import Sequence
from math import prod, sqrt
from typing import NamedTuple

import torch

# Where a gradient has no component its rounding errors must not be taken for one: components this much below the root mean
# square of their mode fade out.
_NOISE = 1e-5
# Over the smallest number of a type: sums of squares below this have no precision left.
_ROOM = 2.0**10
_TINY = 1e-30  # keeps 0 / 0 at 0
# Decay of the Gram matrices whose eigenvectors are the bases.
BASIS_BETA = 0.95


class Scratch:
    """Memory for temporaries, by name, used again and again: to get it anew takes a CPU half as long as the products."""

    def __init__(self) -> None:
        self._held: dict[tuple, torch.Tensor] = {}

    def take(self, name: str, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        """A tensor of any content, in place of the last one of this name."""
        key, numel = (name, like.dtype, like.device), prod(shape)
        if key not in self._held or self._held[key].numel() < numel:
            self._held[key] = torch.empty(numel, dtype=like.dtype, device=like.device)
        return self._held[key][:numel].view(shape)

    def copy(self, x: torch.Tensor) -> torch.Tensor:
        """A contiguous copy, in place of the last one."""
        return self.take("turned", x.shape, x).copy_(x)

    def product(self, q: torch.Tensor, x: torch.Tensor, name: str) -> torch.Tensor:
        """Matrices (layers, d, d) times (layers, d, …)."""
        out = self.take(name, x.shape, x)
        torch.bmm(q, x.flatten(2), out=out.flatten(2))
        return out


class Averages(NamedTuple):
    """What is kept of the modes that move, changed in place; views.

    Attributes
    ----------
    v : torch.Tensor
        Second moments (layers, d_1, …, d_r, channels, *modes).
    grams, bases : list of (torch.Tensor or None)
        (layers, d, d) for each of d_1 … d_r, None for an axis that keeps its own coordinates.
    low_rank : torch.Tensor or None
        For each mode (layers, 1, …, 1, channels, *modes) how much larger the operator norm is than its Frobenius norm tells;
        None for blocks of one row or column.
    """

    v: torch.Tensor
    grams: list[torch.Tensor | None]
    bases: list[torch.Tensor | None]
    low_rank: torch.Tensor | None


def follow_gradients(x: torch.Tensor, grams: list[torch.Tensor | None], scratch: Scratch) -> None:
    """C_a ← β C_a + (1 − β) Σ_{modes, parts, other axes} X Xᵀ for each axis that has a basis; ``x`` stays."""
    for axis, c in enumerate(grams):
        if c is not None:
            rows = (scratch.copy(x.movedim(1 + axis, 1)) if axis else x).flatten(2)
            c.baddbmm_(rows, rows.mT, beta=BASIS_BETA, alpha=1 - BASIS_BETA)


def direction(
    x: torch.Tensor,
    ahead: torch.Tensor,
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
    """Adam in the bases, each mode brought to one size.

    With X the gradient and M what is moved along,

        V ← β₂ V + (1 − β₂) |Qᵀ X|²,        U = share · size · Q (Qᵀ M / √V) / operator norm.

    Parameters
    ----------
    x, ahead : torch.Tensor
        X and M (layers, d_1, …, d_r, parts, channels, *modes), contiguous; M is the scratch's ``ahead``.
    averages : Averages
    size : float or torch.Tensor
        What every mode's update is brought to, lr √(out/in): one number, or one for each layer (layers, 1, …, 1).
    scratch : Scratch
    beta2 : float
        Decay of second moments.
    block : (int, int)
        Sizes of a block, m × n.
    first : tuple of bool
        For each of d_1 … d_r whether it belongs to the first side of the block.
    precision : float
        Of the gradient's type.
    measure_rank : bool
        Whether ``low_rank`` is looked for at this step.

    Returns
    -------
    update : torch.Tensor
        What is to be subtracted, of the shape of ``x``.
    share : torch.Tensor
        Of its full update what each mode gets (layers, 1, …, 1, channels, *modes).
    """
    r = len(averages.bases)
    parts, mixed = r + 1, tuple(range(1, r + 1))
    share, sound = _shares(x, r, precision, scratch)
    v = averages.v.movedim(r, 1)  # (layers, d_r, d_1, …), as what is rotated
    v.lerp_(_squares(_rotated(x, averages.bases, scratch), parts, scratch), 1 - beta2)
    u = _rotated(ahead, averages.bases, scratch)
    m, n = block
    # What Adam divides by, never below the noise of its mode; infinite where there is no gradient, so that momentum, which
    # may have outlived all second moments, moves nothing.
    floor = torch.where(sound, v.sum(mixed, keepdim=True).sqrt_(), torch.inf)
    root = torch.sqrt(v, out=scratch.take("squares", v.shape, v))
    u.div_(root.add_(floor, alpha=_NOISE / sqrt(m * n)).unsqueeze(parts))
    norm = _squares(u, parts, scratch).sum(mixed, keepdim=True).sqrt_()
    if min(m, n) == 1:  # channels that do not mix are one block of a mode, of which the norm is exact
        norm = norm.amax(parts, keepdim=True)
    else:
        # Operator norm over Frobenius norm of random entries, a first-order estimate.
        size = size * (sqrt(m * n) / (sqrt(m) + sqrt(n)))
        if averages.low_rank is not None:
            if measure_rank:
                averages.low_rank.copy_(_low_rank(u, norm, block, first, scratch))
            norm.mul_(averages.low_rank)
    u.mul_((share / norm.add_(_TINY)).mul_(size).unsqueeze(parts))
    return _rotated_back(u, averages.bases, scratch), share


def _shares(x: torch.Tensor, r: int, precision: float, scratch: Scratch) -> tuple[torch.Tensor, torch.Tensor]:
    """Of its full update what each mode gets, and whether it has a gradient at all (layers, 1, …, 1, channels, *modes).

    r² / (r² + (ε max r)²) · n / max n, with r the norm of a mode's gradient, n how many of its numbers, complex ones whole,
    are not exactly zero, ε the precision of the gradient's type, and the maxima over the modes of a layer: 1 but for
    rounding where a gradient is sound, 0 without one. A layer's only mode can be compared with nothing.
    """
    squares = _squares(x, r + 1, scratch)
    mixed, others = tuple(range(1, r + 1)), tuple(range(r + 1, squares.ndim))
    total, least = squares.sum(mixed, keepdim=True), _ROOM * torch.finfo(x.dtype).tiny
    sound = total > least
    if prod(total.shape[1:]) == 1:
        return sound.to(x.dtype), sound
    filled = (squares > 0).sum(mixed, keepdim=True, dtype=x.dtype)
    ratio = total / total.amax(others, keepdim=True).clamp_min_(least)
    share = ratio.div_(ratio + precision**2).mul_(filled / filled.amax(others, keepdim=True).clamp_min_(1))
    return share, sound


def _rotated(x: torch.Tensor, bases: list[torch.Tensor | None], scratch: Scratch) -> torch.Tensor:
    """Qᵀ x along all axes, the last one first: (layers, d_r, d_1, …)."""
    for axis, q in enumerate(bases):
        x = x.movedim(1, len(bases)) if axis else x  # the next axis to the front
        if q is not None:
            x = scratch.product(q.mT, scratch.copy(x) if axis else x, "rotated")
    return x


def _rotated_back(x: torch.Tensor, bases: list[torch.Tensor | None], scratch: Scratch) -> torch.Tensor:
    """The reverse: Q x along all axes, which are then in their own order."""
    last = len(bases) - 1
    for axis in reversed(range(len(bases))):
        q = bases[axis]
        if q is not None:
            x = scratch.product(q, x if axis == last else scratch.copy(x), "ahead")
        x = x.movedim(len(bases), 1) if axis else x  # the last axis to the front
    return x


def _squares(x: torch.Tensor, parts: int, scratch: Scratch) -> torch.Tensor:
    """Squared moduli."""
    first, *rest = x.unbind(parts)
    squares = torch.mul(first, first, out=scratch.take("squares", first.shape, x))
    for part in rest:
        squares.addcmul_(part, part)
    return squares


def _low_rank(
    u: torch.Tensor, norm: torch.Tensor, block: tuple[int, int], first: tuple[bool, ...], scratch: Scratch
) -> torch.Tensor:
    """(Σσ⁴)^(1/4) over (Σσ²)^(1/2), and that over its value for random entries: 1 at full rank, more at low rank.

    Complex entries of unit variance have E Σσ⁴ = mn(m + n), real ones mn(m + n + 1). ``u`` is (layers, d_r, d_1, …, d_(r−1),
    parts, channels, *modes).
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
    """(Σσ⁴)^(1/2) = ‖A Aᴴ‖_F of matrices (parts, batch, m, n): (batch,), from products of the shorter side.

    With A = X + iY, A Aᴴ = (XXᵀ + YYᵀ) + i(YXᵀ − XYᵀ); torch's own product of complex matrices takes four times as long.
    """
    a = a.mT if a.shape[2] > a.shape[3] else a
    x, y = a[0], a[-1]
    shape = (len(x), x.shape[1], x.shape[1])
    even = torch.bmm(x, x.mT, out=scratch.take("ahead", shape, a))  # which is no longer needed
    if len(a) == 1:
        return torch.linalg.matrix_norm(even)
    mixed = torch.bmm(y, x.mT, out=scratch.take("gradients", shape, a))
    return torch.hypot(torch.linalg.matrix_norm(even.baddbmm_(y, y.mT)), torch.linalg.matrix_norm(mixed - mixed.mT))
