"""Float32 products as such on an accelerator: torch's setting for them is one of the whole process, which a step borrows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Before torch 2.9 it had another name.
_NAME, _EXACT = (
    ("fp32_precision", "ieee") if hasattr(torch.backends.cuda.matmul, "fp32_precision") else ("allow_tf32", False)
)
_LOCK = threading.Lock()
_BORROWED: list[str | bool] = []  # what the setting was, once for each step that is under way


@contextmanager
def full_precision() -> Iterator[None]:
    """Float32 products on CUDA as such, not in TF32: a gradient's rounding there would be taken for its small components.

    The first step that comes sets it and the last one that goes puts back what it was, so that steps in several threads
    neither take it from each other nor leave it behind. On a CPU nothing is set, nor where products are exact already.
    """
    matmul = torch.backends.cuda.matmul
    with _LOCK:
        _BORROWED.append(_BORROWED[0] if _BORROWED else getattr(matmul, _NAME))
        if _BORROWED[0] != _EXACT:
            setattr(matmul, _NAME, _EXACT)
    try:
        yield
    finally:
        with _LOCK:
            before = _BORROWED.pop()
            if not _BORROWED and before != _EXACT:
                if _NAME == "fp32_precision":
                    matmul.fp32_precision = "none"  # it may only have followed torch's setting for all backends
                if getattr(matmul, _NAME) != before:
                    setattr(matmul, _NAME, before)
