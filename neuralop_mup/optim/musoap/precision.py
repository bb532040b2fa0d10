"""Float32 products as such on an accelerator: torch's setting for them is one of the whole process, which a step borrows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Before torch 2.9 it had another name.
_NAME, _EXACT = (
    ("fp32_precision", "ieee") if hasattr(torch.backends.cuda.matmul, "fp32_precision") else ("allow_tf32", False)
)


@contextmanager
def full_precision() -> Iterator[None]:
    """Float32 products on CUDA as such, not in TF32: a gradient's rounding there would be taken for its small components.

    Nothing is set where products are exact already, in a step inside another one too.
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
            matmul.fp32_precision = "none"  # it may only have followed torch's setting for all backends
        if getattr(matmul, _NAME) != before:
            setattr(matmul, _NAME, before)
