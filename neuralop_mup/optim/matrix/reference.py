"""The two directions written out for one parameter, block by block: slow and obvious, to read and to test against.

Nothing of the fast versions is used but the letters of a layout and which modes move. What they do against modes of noise is
left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod, sqrt

import torch

from neuralop_mup.optim.matrix.layouts import PAIR, block_shape, order, plain_layout
from neuralop_mup.optim.matrix.stack import comb_of

__all__ = ["muon_steps", "soap_steps"]


def soap_steps(
    p: torch.Tensor,
    gradients: Sequence[torch.Tensor],
    layout: str,
    *,
    lr: float,
    momentum: float = 0.95,
    beta2: float = 0.95,
    basis_beta: float = 0.95,
    period: int = 1,
    refresh: int = 10,
    nesterov: bool = True,
    size: str = "schatten",
    weight_decay: float = 0.0,
) -> torch.Tensor:
    """What MuSOAP makes of one parameter in some steps, at most 64 of them.

    Parameters
    ----------
    p : torch.Tensor
        A kernel, in float64 or complex128.
    gradients : sequence of torch.Tensor
        One for each step, of the same shape.
    layout : str
        See :mod:`neuralop_mup.optim.matrix.layouts`.
    lr, momentum, beta2, basis_beta, period, refresh, nesterov, size, weight_decay
        As for :class:`~neuralop_mup.MuSOAP`, with ``lr`` that of the group.

    Returns
    -------
    torch.Tensor
        The parameter after all steps.
    """
    w, restore = _blocks(p, layout)  # (layers, channels, modes, *in axes, *out axes)
    n_mixed, (n_in, n_out) = w.ndim - 3, block_shape(p, layout)
    m, v = torch.zeros_like(w), torch.zeros_like(w.real if w.is_complex() else w)
    grams = [[torch.zeros(d, d, dtype=torch.float64) for d in w.shape[3:]] for _ in range(len(w))]
    bases = [list(of_layer) for of_layer in grams]
    ratio = torch.ones(len(w), w.shape[2], dtype=torch.float64)
    for t, gradient in enumerate(gradients, start=1):
        g = _blocks(gradient, layout)[0]
        m = momentum * m + (1 - momentum) * g
        ahead = momentum * m + (1 - momentum) * g if nesterov else m
        moving, turns = _moving(p, layout, period, t - 1)
        for layer, axis in product(range(len(w)), range(n_mixed)):
            x = g[layer][:, moving].movedim(2 + axis, 0).flatten(1)
            c = grams[layer][axis] = basis_beta * grams[layer][axis] + (1 - basis_beta) * (x @ x.mH).real
            if t == 1:
                bases[layer][axis] = torch.linalg.eigh(c).eigenvectors.flip(-1)
            elif t % refresh == 0 or (t < refresh and t in (2, 4, 8, 16, 32, 64)):
                bases[layer][axis] = torch.linalg.qr(c @ bases[layer][axis]).Q
        for layer, mode in product(range(len(w)), moving):
            for channel in range(w.shape[1]):
                at, q = (layer, channel, mode), bases[layer]
                v[at] = beta2 * v[at] + (1 - beta2) * _turned(g[at], [b.mT for b in q]).abs() ** 2
            turned = []
            for channel in range(w.shape[1]):
                at = (layer, channel, mode)
                floor = 1e-5 * v[at].mean().sqrt()
                turned.append(_turned(ahead[at], [b.mT for b in q]) / (v[at].sqrt() + floor))
            u = torch.stack(turned)
            estimate = _operator_norm(u.reshape(-1, n_in, n_out), "rms")
            if t <= refresh or (t - 1) % refresh < turns:
                ratio[layer, mode] = _operator_norm(u.reshape(-1, n_in, n_out), size) / estimate
            u = u / (estimate * ratio[layer, mode])
            for channel in range(w.shape[1]):
                at = (layer, channel, mode)
                w[at] *= 1 - turns * lr * weight_decay
                w[at] -= turns * lr * sqrt(n_out / n_in) * _turned(u[channel], q)
    return restore(w)


def muon_steps(
    p: torch.Tensor,
    gradients: Sequence[torch.Tensor],
    layout: str,
    *,
    lr: float,
    momentum: float = 0.95,
    period: int = 1,
    damping: float = 0.7,
    nesterov: bool = True,
    weight_decay: float = 0.0,
) -> torch.Tensor:
    """What MuMuon makes of one parameter, with an exact decomposition where it has polynomials; as :func:`soap_steps`."""
    w, restore = _blocks(p, layout)
    m, (n_in, n_out) = torch.zeros_like(w), block_shape(p, layout)
    for t, gradient in enumerate(gradients):
        g = _blocks(gradient, layout)[0]
        m = momentum * m + (1 - momentum) * g
        ahead = momentum * m + (1 - momentum) * g if nesterov else m
        moving, turns = _moving(p, layout, period, t)
        for at in product(range(len(w)), range(w.shape[1]), moving):
            u, s, vh = torch.linalg.svd(ahead[at].reshape(n_in, n_out), full_matrices=False)
            values = 1 - damping * s / (s**8).sum() ** (1 / 8) if min(n_in, n_out) > 1 else torch.ones_like(s)
            values = values * sqrt(len(s)) / values.norm()
            w[at] *= 1 - turns * lr * weight_decay
            w[at] -= turns * lr * sqrt(n_out / n_in) * ((u * values) @ vh).reshape(w[at].shape)
    return restore(w)


def _blocks(x: torch.Tensor, layout: str):
    """A copy as (layers, channels, modes, *in axes, *out axes), and the way back."""
    paired, letters = PAIR in layout, plain_layout(layout)
    if paired:
        x = torch.view_as_complex(x.movedim(layout.index(PAIR), -1).contiguous())
    places = [order(letters, letter) for letter in "lcbio"]
    permuted = x.permute([axis for place in places for axis in place])
    sizes = [[x.shape[axis] for axis in place] for place in places]
    blocks = permuted.reshape(prod(sizes[0]), prod(sizes[1]), prod(sizes[2]), *sizes[3], *sizes[4]).clone()

    def restore(blocks: torch.Tensor) -> torch.Tensor:
        whole = blocks.reshape(permuted.shape)
        whole = whole.permute([[axis for place in places for axis in place].index(axis) for axis in range(whole.ndim)])
        return torch.view_as_real(whole).movedim(-1, layout.index(PAIR)) if paired else whole

    return blocks, restore


def _moving(p: torch.Tensor, layout: str, period: int, step: int) -> tuple[list[int], int]:
    """Numbers of the modes that move, and in how many steps all have."""
    sizes = [p.shape[axis] for axis in order(layout, "b")]
    comb = comb_of(sizes, period, step)
    due = range(*comb.due.indices(comb.size))
    every = [i for i, at in enumerate(product(*map(range, sizes))) if not sizes or at[comb.axis] in due]
    return every, comb.period


def _turned(block: torch.Tensor, bases: Sequence[torch.Tensor]) -> torch.Tensor:
    """A block with a matrix multiplied onto each of its axes."""
    for axis, q in enumerate(bases):
        block = torch.tensordot(q.to(block.dtype), block, ([1], [axis])).movedim(0, axis)
    return block


def _operator_norm(blocks: torch.Tensor, size: str) -> torch.Tensor:
    """Of the blocks of one mode, from their Schatten norm and that of random entries; exact for rows and columns."""
    _, m, n = blocks.shape
    values = torch.linalg.svdvals(blocks)
    if min(m, n) == 1:
        return values.max()
    power = {"rms": 2, "schatten": 4}[size]
    of_random = m * n * (1 if power == 2 else m + n + (0 if blocks.is_complex() else 1))
    return (values**power).sum() ** (1 / power) * (sqrt(m) + sqrt(n)) / of_random ** (1 / power)
