"""Polar factors of many small blocks at once: matrix products and nothing else.

A block X = U Σ V^H is sent to about U V^H by two odd polynomials: p(X) = U p(Σ) V^H needs no decomposition, only products.
The first, of degree 9, is the odd one that is closest to 1, in the largest deviation, from :data:`FLOOR` to 1, and the
second on the interval into which the first one sends these values; best polynomials one after the other make the best
composition (Amsel, Persson, Musco, Gower, "The Polar Express", 2025, arXiv:2505.16932). The second is the best of those of
degree 17 that three squares give: they have 8 coefficients instead of 9, and deviate by 0.196 where the best has 0.191. In
all that takes nine products; Jordan's quintic, repeated five times (the Muon blog, 2024), takes fifteen.

Powers of XX^H are Hermitian, P + iQ with P symmetric and Q antisymmetric, so that the one real matrix W = P + Q holds them,
and sums of them add. A product of two that commute is again one, and costs two real products instead of four:

    W(AB) = W(A) P(B) + W(A)ᵀ Q(B).

The Gram matrix takes two as well, and the product of a Hermitian matrix with X three.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from neuralop_mup.optim.matrix.noise import TINY
from neuralop_mup.optim.matrix.scratch import Scratch

__all__ = ["BAND", "FLOOR", "STEPS", "Step", "orthogonalize"]


_ZERO = 1e-12  # a bound of what is zero; of a block of length one it is some tenths


class Step(NamedTuple):
    """An odd polynomial p(x) = x (k0 + k1 A + k2 S1 + k3 S2 + …) of A = x², by squares alone.

    S1 = A², and each next one is the square of the last plus multiples, ``shifts``, of those before it, latest first:
    S2 = (S1 + s A)², S3 = (S2 + s S1 + s' A)².
    """

    shifts: tuple[tuple[float, ...], ...]
    k: tuple[float, ...]


# Singular values from FLOOR to 1, as fractions of a bound on the largest, arrive within BAND of 1; smaller ones keep their
# order and stay below. Solved as linear programs, the shifts of the second by descent; the tests solve them again.
FLOOR, BAND = 0.009, 0.197
STEPS: tuple[Step, ...] = (
    Step(((-1.15138129,),), (14.0308752, -134.3607906, 116.5401343, 247.1429655)),
    Step(
        ((-3.787066307,), (4.535079678, -17.16566235)),
        (7.055805169, -45.18396367, 11.85940157, 2.59273699, 0.3064747214),
    ),
)


def orthogonalize(
    x: torch.Tensor, steps: tuple[Step, ...] = STEPS, *, damping: float = 0.0, scratch: Scratch | None = None
) -> torch.Tensor:
    """The polar factor of each block, up to the accuracy of ``steps``, in its place.

    Parameters
    ----------
    x : torch.Tensor
        Blocks (batch, parts, m, n) with m ≤ n, parts the real one and, of complex blocks, the imaginary one; of any scale,
        since each is normalised by itself. Overwritten.
    steps : tuple of Step
        The polynomials, first one first.
    damping : float
        Singular values become 1 − damping · σ / bound instead of 1, by subtracting the normalised block: dominant
        directions get less. Then the block is brought back to the root-mean-square singular value that it had before, so
        that its size depends neither on its width nor on how its singular values are spread. Blocks of one row have one
        direction alone and are not damped.
    scratch : Scratch, optional
        To be handed from call to call.

    Returns
    -------
    torch.Tensor
        The Frobenius norm of each block as it was, (batch,).

    Notes
    -----
    With σ over the block's bound ‖(XX^H)²‖_F^(1/4), which is at most min(m, n)^(1/8) times its largest singular value: all
    from :data:`FLOOR` up are within :data:`BAND` of 1. A zero block stays zero. Blocks of one row are normalised exactly.
    """
    scratch = Scratch() if scratch is None else scratch
    norms = _to_unit(x, scratch)
    if x.shape[2] > 1:
        unit = x
        for i, step in enumerate(steps):
            x = _advanced(x, step, f"x {i % 2}", scratch, first=i == 0)
        if damping:
            before = _norm(x, scratch)
            x.sub_(unit, alpha=damping)
            x.mul_((before / _norm(x, scratch).clamp_min_(TINY)).view(-1, 1, 1, 1))
        unit.copy_(x)
    return norms


def _to_unit(x: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """Each block over its Frobenius norm, which is given back; first over its largest entry, lest squares underflow."""
    largest = torch.abs(x, out=scratch.take("temporary", x.shape, x)).amax((1, 2, 3)).clamp_min_(TINY)
    x.div_(largest.view(-1, 1, 1, 1))
    norm = _norm(x, scratch)
    x.div_(norm.clamp_min(TINY).view(-1, 1, 1, 1))
    return norm.mul_(largest)


def _norm(x: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """Frobenius norm of each block (batch,); of a Hermitian one from its W, since P and Q are orthogonal."""
    return torch.mul(x, x, out=scratch.take("squares", x.shape, x)).flatten(1).sum(1).sqrt_()


def _advanced(x: torch.Tensor, step: Step, name: str, scratch: Scratch, *, first: bool) -> torch.Tensor:
    """One polynomial of each block; at the first one blocks are divided by their bounds, in place."""
    gram = _gram(x, scratch)
    square = _add_square(scratch.take("square", gram.shape, gram), gram, x.shape[1] == 2, scratch, beta=0.0)
    if first:
        # ‖(XX^H)²‖_F^(1/4) = (Σ σ⁸)^(1/8): a far better bound on the largest σ than the Frobenius norm, for free.
        bound = _norm(square, scratch).sqrt_().clamp_min_(_ZERO).view(-1, 1, 1)
        x.div_(bound.sqrt().unsqueeze(1))
        gram.div_(bound)
        square.div_(bound.square())
    return _apply(_polynomial(gram, square, step, x.shape[1] == 2, scratch), x, name, scratch)


def _gram(x: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """X X^H, for complex X = R + iJ as W = (R + J) Rᵀ + (J − R) Jᵀ."""
    re = x[:, 0]
    w = scratch.take("gram", (len(x), x.shape[2], x.shape[2]), x)
    if x.shape[1] == 1:
        return torch.bmm(re, re.mT, out=w)
    im, t = x[:, 1], scratch.take("temporary", re.shape, x)
    torch.bmm(torch.add(re, im, out=t), re.mT, out=w)
    return torch.baddbmm(w, torch.sub(im, re, out=t), im.mT, out=w)


def _add_square(
    onto: torch.Tensor, w: torch.Tensor, is_complex: bool, scratch: Scratch, *, alpha: float = 1.0, beta: float = 1.0
) -> torch.Tensor:
    """``onto`` ← ``beta`` · ``onto`` + ``alpha`` · A², with W(A²) = (W (W + Wᵀ) + Wᵀ (W − Wᵀ)) / 2."""
    if not is_complex:
        return torch.baddbmm(onto, w, w, beta=beta, alpha=alpha, out=onto)
    t = torch.add(w, w.mT, out=scratch.take("temporary", w.shape, w))
    torch.baddbmm(onto, w, t, beta=beta, alpha=alpha / 2, out=onto)
    t.sub_(w, alpha=2)  # Wᵀ − W, without reading a transpose again
    return torch.baddbmm(onto, w.mT, t, alpha=-alpha / 2, out=onto)


def _polynomial(w: torch.Tensor, square: torch.Tensor, step: Step, is_complex: bool, scratch: Scratch) -> torch.Tensor:
    """k0 + k1 A + k2 S1 + …, overwriting S1 = A²."""
    powers = [w, square]
    for i, shifts in enumerate(step.shifts):
        shifted = scratch.take("shifted", w.shape, w).copy_(powers[-1])
        for power, by in zip(reversed(powers[:-1]), shifts, strict=True):
            shifted.add_(power, alpha=by)
        if i + 1 < len(step.shifts):
            powers.append(_add_square(scratch.take(f"square {i}", w.shape, w), shifted, is_complex, scratch, beta=0.0))
    result = powers[-1].mul_(step.k[len(powers)])
    for power, k in zip(powers[:-1], step.k[1:], strict=False):
        result.add_(power, alpha=k)
    if step.shifts:
        _add_square(result, shifted, is_complex, scratch, alpha=step.k[-1])
    result.diagonal(dim1=-2, dim2=-1).add_(step.k[0])
    return result


def _apply(w: torch.Tensor, x: torch.Tensor, name: str, scratch: Scratch) -> torch.Tensor:
    """A X in three real products: with T = Q (R + J), the real part is W R − T and the imaginary one Wᵀ J + T."""
    out, re = scratch.take(name, x.shape, x), x[:, 0]
    if x.shape[1] == 1:
        torch.bmm(w, re, out=out[:, 0])
        return out
    im, (real, imaginary) = x[:, 1], out.unbind(1)
    twice_q = torch.sub(w, w.mT, out=scratch.take("shifted", w.shape, w))
    t = scratch.take("temporary", re.shape, x)
    torch.bmm(twice_q, torch.add(re, im, out=t), out=imaginary)  # 2 T
    real.copy_(imaginary)
    real.baddbmm_(w, re, beta=-0.5)
    imaginary.baddbmm_(w.mT, im, beta=0.5)
    return out
