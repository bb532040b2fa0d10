"""A base with fewer Fourier layers: which of its parameters stands for one that it lacks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from neuralop_mup.errors import MupError

__all__ = ["Layers", "match_layers"]


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
                but_this = (*parts[:i], None, *parts[i + 1 :])
                numbers[but_this][int(part)] = name
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
