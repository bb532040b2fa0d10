"""Compute float32 products on CUDA in full precision, by changing torch's global setting temporarily."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# The setting has another name before torch 2.9.
_NAME, _EXACT = (
    ("fp32_precision", "ieee") if hasattr(torch.backends.cuda.matmul, "fp32_precision") else ("allow_tf32", False)
)


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute float32 products on CUDA without TF32: its rounding errors look like small components of a gradient."""
    matmul = torch.backends.cuda.matmul
    before = getattr(matmul, _NAME)
    setattr(matmul, _NAME, _EXACT)
    try:
        yield
    finally:
        if _NAME == "fp32_precision":
            matmul.fp32_precision = "none"  # inherit the setting for all backends, possibly the state before
        if getattr(matmul, _NAME) != before:
            setattr(matmul, _NAME, before)
