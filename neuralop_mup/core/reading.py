"""Reading a model: what each of its parameters is.

Every module is described by its type (:mod:`neuralop_mup.core.layers`), as it stands in the middle of a model. What grows is
measured afterwards (:mod:`neuralop_mup.core.growth`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

import neuralop_mup.core.adapters  # noqa: F401  describes what this package knows
from neuralop_mup.core.layers import UNKNOWN, Alias, Param, describe
from neuralop_mup.errors import MupError

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class ParameterInfo:
    """A parameter that was read.

    Attributes
    ----------
    param : Param
        What its layer's description says it is.
    shape, tensor_shape : tuple of int
        Logical shape (active modes on mode axes), and shape of the tensor itself.
    layer, owner : str
        Type of the layer that describes it, and that layer's name in the model.
    init_of : tuple of str
        Qualified names of the parameters whose fans its default initialisation reads (itself, unless it is a bias or the
        factor of a kernel).
    frozen : bool
        Whether it is not trained.
    shared : str or None
        A second name of the tensor, which no description gives.
    """

    param: Param
    shape: tuple[int, ...]
    tensor_shape: tuple[int, ...]
    layer: str
    owner: str
    init_of: tuple[str, ...]
    frozen: bool = False
    shared: str | None = None


def read(model: nn.Module) -> dict[str, ParameterInfo]:
    """Read what every parameter of ``model`` is, as if all channels grew.

    Parameters
    ----------
    model : torch.nn.Module
        The model, on any device (also ``meta``).

    Returns
    -------
    dict of str to ParameterInfo
        By qualified name, in ``named_parameters`` order. What nobody describes has the init ``unknown``.

    Raises
    ------
    MupError
        If a parameter has no shape yet or another one than its layer's description, a registration names what its layer
        does not have, or ``n_modes`` is below 1.
    """
    if not isinstance(model, nn.Module):
        raise MupError(f"Expected a torch.nn.Module, got {type(model).__name__}: pass the model itself.")
    _check_modes(model)
    described = dict(_described(model))
    tensors = dict(model.named_parameters(remove_duplicate=False))
    found: dict[str, ParameterInfo] = {}
    first_name: dict[int, str] = {}
    for name, tensor in tensors.items():
        owner, layer, what = described.get(name) or (name.rpartition(".")[0], "", None)
        if isinstance(what, Alias):
            _check_alias(name, f"{owner}.{what.of}".removeprefix("."), tensors)
        elif (first := first_name.setdefault(id(tensor), name)) != name:
            found[first] = replace(found[first], shared=name)
        else:
            layer = layer or type(model.get_submodule(owner)).__name__
            found[name] = _info(name, what or Param("vector", ("fixed",) * tensor.ndim, UNKNOWN), tensor, layer, owner)
    for name, info in found.items():
        if missing := [other for other in info.init_of if other not in found]:
            if missing[0] in tensors:
                raise shared(missing[0], first_name[id(tensors[missing[0]])])
            raise MupError(
                f"The description of {info.layer} says that the init of {name!r} follows {missing[0]!r}, which the model "
                "does not have: give init_of the name of a parameter of the same layer."
            )
    return found


def read_layer(model: nn.Module, owner: str) -> dict[str, ParameterInfo]:
    """What the parameters of one layer are now: its active modes may have changed since the model was read."""
    layer = model.get_submodule(owner)
    tensors = dict(layer.named_parameters())
    prefix, cls = f"{owner}." if owner else "", type(layer).__name__
    return {
        prefix + name: _info(prefix + name, what, tensors[name], cls, owner)
        for name, (what, _) in describe(layer).items()
        if isinstance(what, Param) and name in tensors
    }


def shared(name: str, other: str) -> MupError:
    """What is said of a tensor with two names."""
    return MupError(f"{name!r} is shared with {other!r}, and one tensor cannot follow two rules: give each its own.")


def _described(model: nn.Module) -> Iterator[tuple[str, tuple[str, str, Param | Alias]]]:
    """For each name that a layer describes the layer's name and type, and what it says; a layer comes after its children."""
    for owner, module in reversed(list(model.named_modules(remove_duplicate=False))):
        prefix = f"{owner}." if owner else ""
        for name, (what, _) in describe(module).items():
            if isinstance(what, (Param, Alias)):
                yield prefix + name, (owner, type(module).__name__, what)


def _check_alias(name: str, of: str, tensors: Mapping[str, torch.Tensor]) -> None:
    if tensors.get(of) is not tensors[name]:
        raise MupError(f"Parameter {name!r} and {of!r} should be one tensor under two names, but are two: tie them again.")


def _info(name: str, param: Param, tensor: torch.Tensor, layer: str, owner: str) -> ParameterInfo:
    if isinstance(tensor, nn.parameter.UninitializedParameter):
        raise MupError(f"Parameter {name!r} of {layer} has no shape yet (a lazy module): run the model once first.")
    shape = param.shape or tuple(tensor.shape)
    if len(param.axes) != len(shape):
        raise MupError(
            f"Parameter {name!r} has shape {shape}, but {layer} is described with {len(param.axes)} axes {param.axes}: "
            "this version of the layer is unknown here; describe it with neuralop_mup.register_layer."
        )
    siblings = (param.init_of,) if isinstance(param.init_of, str) else param.init_of or ()
    of = tuple(f"{owner}.{sibling}".removeprefix(".") for sibling in siblings) or (name,)
    return ParameterInfo(param, shape, tuple(tensor.shape), layer, owner, of, not tensor.requires_grad)


def fourier_blocks(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Modules that hand ``n_modes`` on to the convolutions in their ``convs``: FNOBlocks and its kin."""
    for name, module in model.named_modules():
        if hasattr(module, "n_modes") and isinstance(getattr(module, "convs", None), nn.ModuleList):
            yield name or type(model).__name__, module


def _check_modes(model: nn.Module) -> None:
    """Refuse a model with an axis of no modes."""
    for name, module in fourier_blocks(model):
        if any(n < 1 for n in module.n_modes):
            raise MupError(
                f"n_modes = {tuple(module.n_modes)} of {name!r} must be at least 1 on every axis (neuralop builds a kernel "
                f"without numbers otherwise): give {tuple(max(1, n) for n in module.n_modes)}."
            )


def check_grid(model: nn.Module, grid: tuple[int, ...]) -> None:
    """Refuse more Fourier modes than a grid resolves (neuralop silently truncates them).

    Parameters
    ----------
    model : torch.nn.Module
        A model with Fourier blocks.
    grid : tuple of int
        Points on each axis of the data, after what is no axis of the grid (RNO's sequences have channels in third place).

    Raises
    ------
    MupError
        If some ``n_modes`` exceeds the number of points on its axis.
    """
    for _, module in fourier_blocks(model):
        axes = tuple(grid)[-len(module.n_modes) :]
        if any(n > g for n, g in zip(module.n_modes, axes, strict=False)):
            raise MupError(
                f"n_modes = {tuple(module.n_modes)} is beyond the grid of {axes} points, which resolves at most "
                "that many modes: lower n_modes or use a finer grid."
            )
