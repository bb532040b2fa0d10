"""Float32 products as such: torch's setting for them is one of the whole process, which a step may only borrow."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

__all__ = ["full_precision"]


@contextmanager
def full_precision(kinds: Iterable[str]) -> Iterator[None]:
    """Float32 products as such, not in TF32 or bfloat16, whatever torch is set to, also inside autocast on these devices.

    Beyond 1 the polynomials of :mod:`neuralop_mup.optim.matrix.newton_schulz` are steep: with TF32's rounding a block whose
    singular values are all at the bound comes out at twice its size. Bases of MuSOAP would lose their orthogonality.
    """
    with _EXACT.held(), ExitStack() as stack:
        for kind in kinds:
            if torch.amp.is_autocast_available(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


class _Exact:
    """torch's precision of float32 products, which is one of the whole process: full as long as any step needs it.

    The first step that comes sets it and the last one that goes puts back what it was, so that steps in several threads
    neither take it from each other nor leave it behind.
    """

    def __init__(self) -> None:
        self._lock, self._steps = threading.Lock(), 0
        self._before: list[tuple[Any, str, Any]] = []

    @contextmanager
    def held(self) -> Iterator[None]:
        with self._lock:
            self._steps += 1
            if self._steps == 1:
                self._before = [(matmul, name, getattr(matmul, name)) for matmul, name, _ in _full_settings()]
                for matmul, name, full in _full_settings():
                    setattr(matmul, name, full)
        try:
            yield
        finally:
            with self._lock:
                self._steps -= 1
                for matmul, name, value in self._before if self._steps == 0 else ():
                    setattr(matmul, name, value)


_EXACT = _Exact()


def _full_settings() -> list[tuple[Any, str, Any]]:
    """Where torch keeps that precision, under which name, and what means full."""
    matmuls = [getattr(backend, "matmul", None) for backend in (torch.backends.cuda, torch.backends.mkldnn)]
    found: list[tuple[Any, str, Any]] = [(m, "fp32_precision", "ieee") for m in matmuls if hasattr(m, "fp32_precision")]
    return found or [(torch.backends.cuda.matmul, "allow_tf32", False)]  # before torch 2.9
