"""Polar factors of many small blocks at once: matrix products and nothing else.

A block X = U Σ V^H is sent to about U V^H by odd polynomials, one after the other: p(X) = U p(Σ) V^H needs no
decomposition, only products. Each polynomial of :data:`STEPS` is the odd one of its degree that is closest to 1, in the
largest deviation, on the interval that the ones before it have left the singular values in, which makes their
composition the best of all such compositions (Amsel, Persson, Musco, Gower, "The Polar Express", 2025,
arXiv:2505.16932). Jordan's quintic (the Muon blog, 2024) is one polynomial repeated five times.

Complex blocks are kept as a real and an imaginary part, since products of Hermitian matrices can then be had for half
the price: with F = Q Pᵀ and T = (P + Q)(P + Q)ᵀ, which are two real products instead of four,

    (P + iQ)(P + iQ)^H = T − F − Fᵀ + i (F − Fᵀ),

and likewise for the square of a Hermitian matrix, P symmetric and Q antisymmetric. A general product takes three
(Gauss).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

__all__ = ["BAND", "FLOOR", "STEPS", "orthogonalize"]

# Singular values from FLOOR to 1, as fractions of a bound on the largest, arrive within BAND of 1; smaller ones at
# least keep their order and stay below. Lowest power first: p(x) = x (k0 + k1 x² + k2 x⁴ + …).
# Solved as linear programs; tests/test_muon.py solves them again.
FLOOR, BAND = 0.005, 0.141
STEPS: tuple[tuple[float, ...], ...] = (
    (14.53533972, -140.9740458, 467.8020021, -600.4839835, 261.0480284),
    (5.827096922, -13.67224148, 11.81477111, -4.017020656, 0.4656164894),
    (2.342807605, -1.706478278, 0.4228768222),
)


class Block(NamedTuple):
    """A batch of matrices; ``im`` is None where they are real."""

    re: torch.Tensor
    im: torch.Tensor | None


def orthogonalize(x: torch.Tensor, steps: tuple[tuple[float, ...], ...] = STEPS) -> torch.Tensor:
    """The polar factor of each block, up to the accuracy of ``steps``.

    Parameters
    ----------
    x : torch.Tensor
        Blocks (batch, m, n), real or complex, of any scale: each is normalised by itself.
    steps : tuple of tuple of float
        Coefficients of the odd polynomials, of degree 5 or 9.

    Returns
    -------
    torch.Tensor
        Same shape and dtype. With σ over the block's bound ‖(XX^H)²‖_F^(1/4), which is at most min(m, n)^(1/8) times its
        largest singular value: all from :data:`FLOOR` up are within :data:`BAND` of 1. A zero block stays zero. Blocks of
        one row or column are normalised exactly.
    """
    block = _unit(x)
    if min(x.shape[1:]) > 1:
        block = _polar(block, steps)
    return (block.re if block.im is None else torch.complex(block.re, block.im)).to(x.dtype)


def _unit(x: torch.Tensor) -> Block:
    """Each block over its Frobenius norm, in float32 or better; first over its largest entry, lest squares underflow."""
    dtype = torch.float64 if x.dtype in (torch.float64, torch.complex128) else torch.float32
    parts = (x.real, x.imag) if x.is_complex() else (x,)
    parts = [part.to(dtype, memory_format=torch.contiguous_format, copy=True) for part in parts]
    largest = torch.stack([part.flatten(1).abs().amax(1) for part in parts]).amax(0)
    _divide(parts, largest)
    _divide(parts, _norm(parts))
    return Block(*parts) if len(parts) == 2 else Block(parts[0], None)


def _polar(x: Block, steps: tuple[tuple[float, ...], ...]) -> Block:
    """Run the polynomials on the side of each block that is shorter."""
    if x.re.shape[1] > x.re.shape[2]:
        return _transposed(_polar(_transposed(x), steps))
    for i, step in enumerate(steps):
        gram = _gram(x)
        square = _square(gram)
        if i == 0:
            # ‖(XX^H)²‖_F^(1/4) = (Σ σ⁸)^(1/8): a far better bound on the largest σ than the Frobenius norm, for free.
            bound = _norm(square).sqrt()
            for block, power in ((x, 0.5), (gram, 1), (square, 2)):
                _divide(block, bound**power)
        x = _product(_polynomial(gram, square, step), x)
    return x


def _transposed(x: Block) -> Block:
    """X^T (not X^H: the polar factor of X^T is that of X, transposed)."""
    return Block(x.re.mT.contiguous(), None if x.im is None else x.im.mT.contiguous())


def _norm(parts: Iterable[torch.Tensor | None]) -> torch.Tensor:
    """Frobenius norm of each matrix (batch,)."""
    return sum(part.flatten(1).square().sum(1) for part in parts if part is not None).sqrt()


def _divide(parts: Iterable[torch.Tensor | None], norm: torch.Tensor) -> None:
    """Divide each matrix, in place, by its norm (batch,); what is zero stays zero."""
    norm = torch.where(norm > 0, norm, 1).view(-1, 1, 1)
    for part in parts:
        if part is not None:
            part.div_(norm)


def _gram(x: Block) -> Block:
    """X X^H."""
    if x.im is None:
        return Block(torch.bmm(x.re, x.re.mT), None)
    return _hermitian(x.re + x.im, torch.bmm(x.im, x.re.mT))


def _square(a: Block) -> Block:
    """A² of a Hermitian A: A A^H, where P is symmetric and Qᵀ = −Q."""
    if a.im is None:
        return Block(torch.bmm(a.re, a.re), None)
    return _hermitian(a.re + a.im, torch.bmm(a.im, a.re))


def _hermitian(both: torch.Tensor, f: torch.Tensor) -> Block:
    """T − F − Fᵀ + i (F − Fᵀ) with T = ``both`` · ``both``ᵀ, overwriting F."""
    im = f - f.mT
    return Block(torch.baddbmm(f, both, both.mT, beta=-2, out=f).add_(im), im)


def _polynomial(a: Block, square: Block, step: tuple[float, ...]) -> Block:
    """k0 + k1 A + k2 A² + …, overwriting A²."""
    quartic = Block(None, None)
    if len(step) == 5:
        # k3 A³ + k4 A⁴ from one more square: k4 (A² + v A)² = k4 A⁴ + k3 A³ + k4 v² A².
        k0, k1, k2, k3, k4 = step
        v = k3 / (2 * k4)
        quartic = _square(Block(*(None if p is None else p.add(q, alpha=v) for p, q in zip(square, a, strict=True))))
        k2 -= k4 * v * v
    else:
        k0, k1, k2 = step
        k4 = 0.0
    for p, linear, more in zip(square, a, quartic, strict=True):
        if p is not None:
            p.mul_(k2).add_(linear, alpha=k1)
        if more is not None:
            p.add_(more, alpha=k4)
    square.re.diagonal(dim1=-2, dim2=-1).add_(k0)
    return square


def _product(b: Block, x: Block) -> Block:
    """B X in three real products, overwriting B."""
    if x.im is None:
        return Block(torch.bmm(b.re, x.re), None)
    first, second = torch.bmm(b.re, x.re), torch.bmm(b.im, x.im)
    im = torch.bmm(b.re.add_(b.im), x.re + x.im).sub_(first).sub_(second)
    return Block(first.sub_(second), im)
