"""Fourier kernels that receive no gradient."""

import warnings
from collections.abc import Iterable

from neuralop_mup.optim.resolved_model import ResolvedModel

#: Start of the warning.
NO_GRADIENT = "Fourier kernels receive no gradient"


def kernels_without_gradient(resolved: ResolvedModel, count_zeros: bool = True) -> list[str]:
    """Return the names of trainable Fourier kernels with no gradient, or with a zero gradient.

    The list is empty if no parameter has a gradient. Call it after ``backward``. To look for zeros, it waits for the device.
    """
    kernels = {row.name for row in resolved.plan.rows if row.role == "spectral"}
    trained = {name: p for name, p in resolved.parameters.items() if p.requires_grad}
    idle = [name for name, p in trained.items() if p.grad is None or (count_zeros and not p.grad.any())]
    return [name for name in idle if name in kernels] if len(idle) < len(trained) else []


def warn_of_no_gradient(names: Iterable[str], stacklevel: int = 3) -> None:
    """Warn that these kernels stay untrained, if there are any."""
    if names := list(names):
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        warnings.warn(
            f"{NO_GRADIENT} and stay untrained: {', '.join(names[:3])}{more}. Usually the forward pass never calls the "
            "layer, or discards (layer(x) instead of x = layer(x)), detaches or zeroes its output. Correct it, or call "
            "requires_grad_(False) on kernels that you do not train.",
            stacklevel=stacklevel,
        )
