"""Compute float32 products on CUDA in full precision, by changing torch's global setting temporarily."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# torch before 2.9 has another name for the setting.
_NAME, _EXACT = (
    ("fp32_precision", "ieee") if hasattr(torch.backends.cuda.matmul, "fp32_precision") else ("allow_tf32", False)
)


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute float32 products on CUDA without TF32, whose rounding would look like small components of a gradient.

    Nothing changes if products are already exact, e.g. in a nested call.
    """
    matmul = torch.backends.cuda.matmul
    before = getattr(matmul, _NAME)
    if before == _EXACT:
        yield
        return
    setattr(matmul, _NAME, _EXACT)
    try:
        yield
    finally:
        if _NAME == "fp32_precision":
            matmul.fp32_precision = "none"  # follow torch's setting for all backends, which may have been the state before
        if getattr(matmul, _NAME) != before:
            setattr(matmul, _NAME, before)
