"""Batches of matrices for the tests of Muon, and their exact polar factors."""

import torch


def blocks(n_in, n_out, dtype, batch=5, seed=0):
    return torch.randn(batch, n_in, n_out, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def wide(x):
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def with_values(values, m, n, dtype, seed=0):
    """A block with the given singular values."""
    u = torch.linalg.qr(blocks(m, len(values), dtype, 1, seed))[0]
    v = torch.linalg.qr(blocks(n, len(values), dtype, 1, seed + 1))[0]
    return (u * torch.as_tensor(values, dtype=u.real.dtype)) @ v.mH


def exact(x):
    """Polar factor by a decomposition in double precision; of a zero block, zero."""
    u, s, vh = torch.linalg.svd(wide(x), full_matrices=False)
    return (u * (s > 1e-10 * s[..., :1])[..., None, :]) @ vh
