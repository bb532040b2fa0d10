"""How many Fourier layers of a model follow each other."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

_BESIDE: dict[type, tuple[str, ...]] = {}


def stands_beside(layer_type: type, *children: str) -> None:
    """Fourier layers in these children of a layer are computed beside others of its, and so add nothing to depth."""
    _BESIDE[layer_type] = children


def fourier_depth(model: nn.Module, owners: Iterable[str]) -> int:
    """Number of Fourier layers that follow each other.

    Parameters
    ----------
    model : torch.nn.Module
        The bare model.
    owners : iterable of str
        Names of its modules that hold kernels; one that holds several layers counts them.
    """
    beside = [
        f"{name}.{child}.".removeprefix(".")
        for name, module in model.named_modules()
        for cls in type(module).__mro__
        for child in _BESIDE.get(cls, ())
    ]
    following = [owner for owner in set(owners) if not f"{owner}.".startswith(tuple(beside))]
    return max(1, sum(getattr(model.get_submodule(owner), "n_layers", 1) for owner in following))
