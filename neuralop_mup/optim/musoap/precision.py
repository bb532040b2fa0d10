"""Compute float32 products on CUDA in full precision by temporarily changing torch's global setting."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Before torch 2.9, the setting has a different name.
_NAME, _EXACT = (
    ("fp32_precision", "ieee") if hasattr(torch.backends.cuda.matmul, "fp32_precision") else ("allow_tf32", False)
)


@contextmanager
def full_precision() -> Iterator[None]:
    """Disable TF32 for float32 products on CUDA, because its rounding errors look like small gradient components."""
    matmul = torch.backends.cuda.matmul
    before = getattr(matmul, _NAME)
    setattr(matmul, _NAME, _EXACT)
    try:
        yield
    finally:
        if _NAME == "fp32_precision":
            matmul.fp32_precision = "none"  # inherit the setting of all backends, which may restore the previous state
        if getattr(matmul, _NAME) != before:
            setattr(matmul, _NAME, before)
