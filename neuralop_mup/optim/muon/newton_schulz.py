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

from collections.abc import Iterable
from typing import NamedTuple

import torch

from neuralop_mup.optim.kernels.scratch import Scratch

__all__ = ["BAND", "FLOOR", "STEPS", "Step", "orthogonalize"]


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


class Block(NamedTuple):
    """A batch of matrices; ``im`` is None where they are real."""

    re: torch.Tensor
    im: torch.Tensor | None


def orthogonalize(
    x: torch.Tensor,
    steps: tuple[Step, ...] = STEPS,
    *,
    damping: float = 0.0,
    out: torch.Tensor | None = None,
    scratch: Scratch | None = None,
) -> torch.Tensor:
    """The polar factor of each block, up to the accuracy of ``steps``.

    Parameters
    ----------
    x : torch.Tensor
        Blocks (batch, m, n), real or complex, of any scale: each is normalised by itself.
    steps : tuple of Step
        The polynomials, first one first.
    damping : float
        Singular values become 1 − damping · σ / bound instead of 1, by subtracting the normalised block: dominant
        directions get less. Then the block is brought back to the root-mean-square singular value that it had before, so
        that its size depends neither on its width nor on how its singular values are spread. Blocks of one row or column
        have one direction alone and are not damped.
    out : torch.Tensor, optional
        Where the result goes, of the shape and dtype of ``x``, which it may be.
    scratch : Scratch, optional
        To be handed from call to call.

    Returns
    -------
    torch.Tensor
        Same shape and dtype. With σ over the block's bound ‖(XX^H)²‖_F^(1/4), which is at most min(m, n)^(1/8) times its
        largest singular value: all from :data:`FLOOR` up are within :data:`BAND` of 1. A zero block stays zero. Blocks of
        one row or column are normalised exactly.
    """
    out = torch.empty_like(x) if out is None else out
    if x.shape[1] > x.shape[2]:  # the polynomials run on the shorter side; the polar factor of X^T is that of X, transposed
        orthogonalize(x.mT, steps, damping=damping, out=out.mT, scratch=scratch)
        return out
    scratch = Scratch() if scratch is None else scratch
    block = _unit(x, scratch)
    if x.shape[1] > 1:
        polar = _polar(block, steps, scratch)
        if damping:
            parts = [(part, unit) for part, unit in zip(polar, block, strict=True) if part is not None and unit is not None]
            before = _norm(*(part for part, _ in parts))
            for part, unit in parts:
                part.sub_(unit, alpha=damping)
            after = _norm(*(part for part, _ in parts))
            _multiply(polar, torch.where(after > 0, before / after, 1))
        block = polar
    for i, part in enumerate(part for part in block if part is not None):
        (torch.view_as_real(out).select(-1, i) if x.is_complex() else out).copy_(part)
    return out


def _unit(x: torch.Tensor, scratch: Scratch) -> Block:
    """Each block over its Frobenius norm, in float32 or better; first over its largest entry, lest squares underflow."""
    dtype = torch.float64 if x.dtype in (torch.float64, torch.complex128) else torch.float32
    like = torch.empty(0, dtype=dtype, device=x.device)
    sources = {"re": x.real, "im": x.imag} if x.is_complex() else {"re": x}
    parts = [scratch.take(name, part.shape, like).copy_(part) for name, part in sources.items()]
    largest = torch.stack([side for part in parts for side in (part.amax((1, 2)), part.amin((1, 2)).neg_())]).amax(0)
    _divide(parts, largest)
    _divide(parts, _norm(*parts))
    return Block(*parts) if len(parts) == 2 else Block(parts[0], None)


def _polar(x: Block, steps: tuple[Step, ...], scratch: Scratch) -> Block:
    """Run the polynomials on blocks that are no higher than wide, which are divided by their bounds in place."""
    is_complex = x.im is not None
    for i, step in enumerate(steps):
        gram = _gram(x, scratch)
        square = _add_square(scratch.take("square", gram.shape, gram), gram, is_complex, scratch, beta=0.0)
        if i == 0:
            # ‖(XX^H)²‖_F^(1/4) = (Σ σ⁸)^(1/8): a far better bound on the largest σ than the Frobenius norm, for free.
            bound = _norm(square).sqrt()
            for parts, power in ((x, 0.5), ((gram,), 1), ((square,), 2)):
                _divide(parts, bound**power)
        names = (f"re {i % 2}", f"im {i % 2}")
        x = _apply(_polynomial(gram, square, step, is_complex, scratch), x, names, scratch)
    return x


def _norm(*parts: torch.Tensor) -> torch.Tensor:
    """Frobenius norm of each matrix (batch,); of a Hermitian one from its W, since P and Q are orthogonal."""
    return torch.stack([torch.linalg.vector_norm(part, dim=(1, 2)) for part in parts]).square().sum(0).sqrt()


def _divide(parts: Iterable[torch.Tensor | None], norm: torch.Tensor) -> None:
    """Divide each matrix, in place, by its norm (batch,); what is zero stays zero."""
    norm = torch.where(norm > 0, norm, 1).view(-1, 1, 1)
    for part in parts:
        if part is not None:
            part.div_(norm)


def _multiply(parts: Iterable[torch.Tensor | None], factor: torch.Tensor) -> None:
    """Multiply each matrix, in place, by its factor (batch,)."""
    for part in parts:
        if part is not None:
            part.mul_(factor.view(-1, 1, 1))


def _gram(x: Block, scratch: Scratch) -> torch.Tensor:
    """X X^H, for complex X = R + iJ as W = (R + J) Rᵀ + (J − R) Jᵀ."""
    w = scratch.take("gram", (*x.re.shape[:2], x.re.shape[1]), x.re)
    if x.im is None:
        return torch.bmm(x.re, x.re.mT, out=w)
    t = scratch.take("temporary", x.re.shape, x.re)
    torch.bmm(torch.add(x.re, x.im, out=t), x.re.mT, out=w)
    return torch.baddbmm(w, torch.sub(x.im, x.re, out=t), x.im.mT, out=w)


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


def _apply(w: torch.Tensor, x: Block, names: tuple[str, str], scratch: Scratch) -> Block:
    """A X in three real products: with T = Q (R + J), the real part is W R − T and the imaginary one Wᵀ J + T."""
    re = scratch.take(names[0], x.re.shape, x.re)
    if x.im is None:
        return Block(torch.bmm(w, x.re, out=re), None)
    im = scratch.take(names[1], x.re.shape, x.re)
    twice_q = torch.sub(w, w.mT, out=scratch.take("shifted", w.shape, w))
    both = torch.add(x.re, x.im, out=scratch.take("temporary", x.re.shape, x.re))
    torch.bmm(twice_q, both, out=im)  # 2 T
    torch.baddbmm(re.copy_(im), w, x.re, beta=-0.5, out=re)
    return Block(re, torch.baddbmm(im, w.mT, x.im, beta=0.5, out=im))
