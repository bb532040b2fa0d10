"""Fourier layers that follow each other: how many there are, and what stands at base for those that it lacks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from torch import nn

from neuralop_mup.errors import MupError

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
    following = [owner for owner in set(owners) if not any(f"{owner}.".startswith(prefix) for prefix in beside)]
    return max(1, sum(getattr(model.get_submodule(owner), "n_layers", 1) for owner in following))


@dataclass(frozen=True)
class Layers:
    """What stands at base for a parameter.

    Attributes
    ----------
    last : str
        Name of the same parameter in base's last layer; the parameter's own where it is in no layer, or base has as many.
    lacking : bool
        Whether base lacks the parameter, so that ``last`` stands for it.
    """

    last: str
    lacking: bool = False

    def at_base(self, name: str) -> str:
        """Name at base of what stands for the parameter ``name``."""
        return self.last if self.lacking else name


def match_layers(names: Collection[str], base: Collection[str], kernels: Iterable[str]) -> dict[str, Layers] | None:
    """What each parameter is compared with, by name; None if model and base differ in more than their Fourier layers.

    A parameter belongs to a stack if it goes by the same name in other layers, but for the layer's number. Every stack that
    is higher than at base has to be so by the factor by which Fourier kernels are more: other lists of layers (the maps
    inside a graph kernel) are architecture and no depth.

    Parameters
    ----------
    names, base : collection of str
        Names of all parameters, of the model and of base.
    kernels : iterable of str
        Names of the model's Fourier kernels, or of their parts.

    Raises
    ------
    MupError
        If base has more layers than the model.
    """
    names, base, kernels = set(names), set(base), set(kernels)
    if names < base and _stacks(base, names) is not None:
        raise MupError(
            "base has more layers than the model (for example, "
            f"{sorted(base - names)[0]!r} is at base alone): a proxy is to be no deeper than its target, so give base the "
            "model's own n_layers or fewer."
        )
    if not base <= names:
        return None
    stacks = _stacks(names, base)
    if stacks is None:
        return None
    layers, heights = stacks
    if any(here * len(kernels & base) != at_base * len(kernels) for here, at_base in heights):
        return None
    return {name: layers.get(name, Layers(name)) for name in names}


def _stacks(names: set[str], base: set[str]) -> tuple[dict[str, Layers], set[tuple[int, int]]] | None:
    """Stacks higher than at base, by name of each parameter in them, and heights; None if base lacks one that is in none."""
    numbers: dict[tuple, dict[int, str]] = defaultdict(dict)
    for name in names:
        parts = name.split(".")
        for i, part in enumerate(parts):
            if part.isdigit():
                elsewhere = (*parts[:i], None, *parts[i + 1 :])
                numbers[elsewhere][int(part)] = name
    stacks: dict[str, Layers] = {}
    heights: set[tuple[int, int]] = set()
    for siblings in numbers.values():
        own = [number for number, name in siblings.items() if name in base]
        if own and len(own) < len(siblings):
            last = siblings[max(own)]
            heights.add((len(siblings), len(own)))
            for name in siblings.values():
                if name in stacks:  # higher in two ways at once: which of them is depth is not known
                    return None
                stacks[name] = Layers(last, lacking=name not in base)
    return (stacks, heights) if names - base <= stacks.keys() else None
