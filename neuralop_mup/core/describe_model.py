"""Describe every parameter of a model.

A module is described by its type (:mod:`neuralop_mup.core.layers.registry`), as if it stood in the middle of a model. Which
of its dimensions grow is inferred afterwards (:mod:`neuralop_mup.core.width_dims`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

import neuralop_mup.core.layers  # noqa: F401  describes what this package knows
from neuralop_mup.core.layers.registry import UNKNOWN, Alias, Param, describe, is_users
from neuralop_mup.errors import MupError


@dataclass(frozen=True)
class ParameterInfo:
    """A parameter that was read, and later measured.

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
    registered : bool
        Whether a user described it.
    shared : str or None
        A second name of the tensor, where it is something else than under the first.
    tied : tuple of str
        Further names of the tensor, where it is the same.
    base_shape : tuple of int
        Logical shape at base, once it is measured.
    lacking : bool
        Whether base, which has fewer layers, lacks it; ``base_shape`` is then that of its last layer.
    fixed : bool
        Whether nothing of it was measured to grow, nor of what its initialization follows.
    recognised : bool
        Whether it was recognised as a Fourier kernel (:mod:`neuralop_mup.core.raw_kernels`).
    proposal : str
        Python text of a description that fits one of the two proofs for a Fourier kernel, where the other fails.
    acts_as_kernel : bool
        Whether that is the proof by plane waves; otherwise it is the one by initial values.
    """

    param: Param
    shape: tuple[int, ...]
    tensor_shape: tuple[int, ...]
    layer: str
    owner: str
    init_of: tuple[str, ...]
    frozen: bool
    registered: bool
    shared: str | None = None
    tied: tuple[str, ...] = ()
    base_shape: tuple[int, ...] = ()
    lacking: bool = False
    fixed: bool = False
    recognised: bool = False
    proposal: str = ""
    acts_as_kernel: bool = False


def describe_model(model: nn.Module, prefix: str = "") -> dict[str, ParameterInfo]:
    """Read what every parameter of ``model`` is, as if all channels grew.

    Parameters
    ----------
    model : torch.nn.Module
        The model, or a part of one, on any device (also ``meta``).
    prefix : str
        What names of the part's parameters begin with in the whole model.

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
    for name, module in fourier_blocks(model):
        if any(n < 1 for n in module.n_modes):
            raise MupError(
                f"n_modes = {tuple(module.n_modes)} of {name!r} must be at least 1 on every axis (neuralop builds a kernel "
                f"without numbers otherwise): give {tuple(max(1, n) for n in module.n_modes)}."
            )
    described = dict(_described(model, prefix))
    tensors = {prefix + name: tensor for name, tensor in model.named_parameters(remove_duplicate=False)}
    found: dict[str, ParameterInfo] = {}
    first_name: dict[int, str] = {}
    tied: dict[str, str] = {}  # a further name of a tensor, where it is the same to its layer → the first
    for name, tensor in tensors.items():
        owner, layer, what, registered = described[name]
        if isinstance(what, Alias) and what.of is None:
            if (first := first_name.get(id(tensor), name)) == name:
                raise MupError(
                    f"{name!r} of {layer} is to be the weight of another layer, but no other layer has it: tie them."
                )
            found[first] = replace(found[first], param=replace(found[first].param, divided=True))
        elif isinstance(what, Alias):
            of = f"{owner}.{what.of}".removeprefix(".")
            if tensors.get(of) is not tensor:
                raise MupError(
                    f"Parameter {name!r} and {of!r} should be one tensor under two names, but are two: tie them again."
                )
        elif (first := first_name.setdefault(id(tensor), name)) != name:
            other = found[first]
            if (layer, what.role, what.axes) == (other.layer, other.param.role, other.param.axes):
                tied[name] = first
                found[first] = replace(other, tied=(*other.tied, name))
            else:
                found[first] = replace(other, shared=name)
        else:
            found[name] = _info(name, what, tensor, layer, owner, registered)
    for name, info in found.items():
        found[name] = info = replace(info, init_of=tuple(tied.get(of, of) for of in info.init_of))
        if missing := [other for other in info.init_of if other not in found]:
            raise MupError(
                f"The init of {name!r} of {info.layer} follows {missing[0]!r}, which the model does not have, or which is "
                "shared with another: give init_of the name of a parameter of the same layer, and each its own tensor. If "
                "weight_norm or spectral_norm of torch.nn.utils took it away, take those of torch.nn.utils.parametrizations."
            )
    return found


def _described(model: nn.Module, prefix: str) -> Iterator[tuple[str, tuple[str, str, Param | Alias, bool]]]:
    """For each name the layer that has it, its type, what it is, and whether a user says so; a layer after its children."""
    for name, module in reversed(list(model.named_modules(remove_duplicate=False))):
        owner, layer = (prefix + name).rstrip("."), type(module).__name__
        inside = f"{owner}." if owner else ""
        for own, tensor in module.named_parameters(recurse=False, remove_duplicate=False):
            yield inside + own, (owner, layer, Param("vector", ("fixed",) * tensor.ndim, UNKNOWN), False)
        for own, (what, function) in describe(module).items():
            # What torch computes from others (weight_norm) is no parameter; a user may describe what it is computed from.
            if isinstance(what, (Param, Alias)) and (is_users(function) or not is_parametrized(module)):
                yield inside + own, (owner, layer, what, is_users(function))


def _info(name: str, param: Param, tensor: torch.Tensor, layer: str, owner: str, registered: bool) -> ParameterInfo:
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
    return ParameterInfo(param, shape, tuple(tensor.shape), layer, owner, of, not tensor.requires_grad, registered)


def fourier_blocks(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Modules that hand ``n_modes`` on to the convolutions in their ``convs``: FNOBlocks and its kin."""
    for name, module in model.named_modules():
        # A class that is not neuralop's may keep one number for all axes.
        if isinstance(getattr(module, "n_modes", 0), Sequence) and isinstance(getattr(module, "convs", None), nn.ModuleList):
            yield name or type(model).__name__, module


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
