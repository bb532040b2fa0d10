"""Channel bases shared by all modes of a layer: Gram matrices, rotations, and their renewal.

Gradients are real tensors X of shape (layers, d_1, …, d_r, channels, modes, parts): d_1 … d_r are the axes that a block sums
over and those that it produces, for a dense kernel its input and output channels; parts are real and imaginary. Every such
axis has one orthonormal basis Q_a (layers, d_a, d_a), which all modes and all other axes share. Its vectors are eigenvectors
of the Gram matrix of that axis,

    C_a ← β C_a + (1 − β) Σ_{modes, parts, other axes} X Xᵀ,

with the modes that move at this step, every other one at a time by default. They are renewed by one step of orthogonal
iteration, Q_a ← qr(C_a Q_a). Bases are real since fields are: mode −k of a real kernel has the conjugate block, and
Σ_{±k} G_k G_k^H = 2 Re Σ_k G_k G_k^H. (Of complex fields this is not so: there it is a choice, at which the complex part of
Σ_k G_k G_k^H is left out.) That also halves the price of a rotation.
"""

from __future__ import annotations

from math import log2, prod

import torch

__all__ = ["first_basis", "gram", "renewed", "rotate"]


def rotate(
    x: torch.Tensor, q: torch.Tensor, axis: int, *, back: bool = False, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Coordinates in a basis along one axis, x ← Qᵀ x, or back from them, x ← Q x.

    Parameters
    ----------
    x : torch.Tensor
        (layers, d_1, …, d_r, …).
    q : torch.Tensor
        Bases (layers, d, d), d the size of ``axis``; columns are the basis vectors.
    axis : int
        From 1 to r.
    back : bool
        Whether to go back.
    out : torch.Tensor, optional
        Contiguous memory of the shape of ``x`` for the result, other than that of ``x``.
    """
    out = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    q = q if back else q.mT
    layers, d, before, after = len(x), x.shape[axis], prod(x.shape[1:axis]), prod(x.shape[axis + 1 :])
    shape: tuple[int, ...]
    if after == 1:
        shape = (layers, before, d)
        torch.bmm(x.reshape(shape), q.mT, out=out.view(shape))
    elif before == 1:
        shape = (layers, d, after)
        torch.bmm(q, x.reshape(shape), out=out.view(shape))
    elif layers == 1 and after >= d:
        shape = (layers, before, d, after)
        torch.matmul(q.unsqueeze(1), x.reshape(shape), out=out.view(shape))
    else:  # the product above copies q for each of many small products if it belongs to several layers
        swapped = x.reshape(layers, before, d, after).transpose(1, 2)
        product = torch.bmm(q, swapped.reshape(layers, d, before * after)).view(swapped.shape)
        out.view(layers, before, d, after).copy_(product.transpose(1, 2))
    return out


def gram(x: torch.Tensor, axis: int) -> torch.Tensor:
    """Σ x xᵀ along one axis, over all others: (layers, d, d)."""
    rows = x.movedim(axis, 1).flatten(2)
    return torch.bmm(rows, rows.mT)


def first_basis(c: torch.Tensor) -> torch.Tensor:
    """Eigenvectors of Gram matrices (layers, d, d), largest eigenvalue first; the identity where all are zero."""
    return torch.linalg.eigh(c).eigenvectors.flip(-1)


def renewed(c: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """One step of orthogonal iteration from the bases ``q``. Without a Gram matrix (zero) they stay."""
    # Over a power of two, which rounds nothing: the squares in its norm would underflow or overflow long before it does.
    limit = log2(torch.finfo(c.dtype).max) - 2
    exponent = torch.frexp(c.abs().amax((1, 2), keepdim=True)).exponent.to(c.dtype).clamp(-limit, limit)
    product = torch.bmm(torch.ldexp(c, -exponent), q)
    size = torch.linalg.vector_norm(product, dim=(1, 2), keepdim=True)
    new = torch.linalg.qr(product / torch.where(size > 0, size, 1)).Q
    return torch.where(size > 0, new, q)
