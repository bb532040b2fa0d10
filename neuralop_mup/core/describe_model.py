"""Describe every parameter of a model.

The type of a module determines its description (:mod:`neuralop_mup.core.layers.registry`), as a layer in the middle of a
model. :mod:`neuralop_mup.core.width_dims` then infers which dimensions grow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

import neuralop_mup.core.layers  # noqa: F401  registers this package's descriptions
from neuralop_mup.core.layers.registry import UNKNOWN, Alias, Param, describe, is_users
from neuralop_mup.errors import MupError


@dataclass(frozen=True)
class ParameterInfo:
    """Properties of one parameter.

    Attributes
    ----------
    param : Param
        Its description from the layer.
    shape, tensor_shape : tuple of int
        Logical shape (active modes on mode axes), and shape of the tensor.
    layer, owner : str
        Type of the layer that describes it, and that layer's name in the model.
    init_of : tuple of str
        Qualified names of the parameters that determine the fans of its default initialisation: the parameter itself, except
        for biases and factors of kernels.
    frozen : bool
        Whether ``requires_grad`` is False.
    registered : bool
        Whether a user described it.
    shared : str or None
        A second name of the tensor with a different description.
    tied : tuple of str
        Further names of the tensor with the same description.
    base_shape : tuple of int
        Logical shape at base, inferred later.
    lacking : bool
        Whether base has fewer layers and not this parameter. ``base_shape`` is then that of base's last layer.
    fixed : bool
        Whether no dimension grows, neither its own nor those of ``init_of``.
    recognised : bool
        Whether it was recognised as a Fourier kernel (:mod:`neuralop_mup.core.raw_kernels`).
    proposal : str
        Python text of a kernel's description, if only one of the two tests for kernels passed.
    evidence : str
        Sentences about these tests, for an error.
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
    evidence: str = ""


def describe_model(model: nn.Module, prefix: str = "") -> dict[str, ParameterInfo]:
    """Return the description of every parameter, as if all channels grew.

    Parameters
    ----------
    model : torch.nn.Module
        The model, or a part of one, on any device (also ``meta``).
    prefix : str
        Prefix of the part's parameter names in the whole model.

    Returns
    -------
    dict of str to ParameterInfo
        Qualified names in ``named_parameters`` order. Undescribed parameters have the init ``unknown``.

    Raises
    ------
    MupError
        If a parameter has no shape yet or does not fit its description, a registration lists an absent parameter, or
        ``n_modes`` is below 1.
    """
    if not isinstance(model, nn.Module):
        raise MupError(f"Expected a torch.nn.Module, got {type(model).__name__}. Pass the model itself.")
    for name, module in fourier_blocks(model):
        if any(n < 1 for n in module.n_modes):
            raise MupError(
                f"n_modes = {tuple(module.n_modes)} of {name!r} must be at least 1 on every axis; otherwise kernels are "
                f"empty. Use {tuple(max(1, n) for n in module.n_modes)}."
            )
    described = dict(_described(model, prefix))
    tensors = {prefix + name: tensor for name, tensor in model.named_parameters(remove_duplicate=False)}
    found: dict[str, ParameterInfo] = {}
    first_name: dict[int, str] = {}
    for name, tensor in tensors.items():
        owner, layer, what, registered = described[name]
        if isinstance(what, Alias) and what.of is None:
            if (first := first_name.get(id(tensor), name)) == name:
                raise MupError(
                    f"{name!r} of {layer} must be the weight of another layer, but no other layer has it. Tie them."
                )
            found[first] = replace(found[first], param=replace(found[first].param, divided=True))
        elif isinstance(what, Alias):
            of = f"{owner}.{what.of}".removeprefix(".")
            if tensors.get(of) is not tensor:
                raise MupError(
                    f"Parameters {name!r} and {of!r} must be one tensor under two names, but are two. Tie them again."
                )
        elif (first := first_name.setdefault(id(tensor), name)) != name:
            other = found[first]
            if (layer, what.role, what.axes) == (other.layer, other.param.role, other.param.axes):
                found[first] = replace(other, tied=(*other.tied, name))
            else:
                found[first] = replace(other, shared=name)
        else:
            found[name] = _info(name, what, tensor, layer, owner, registered)
    tied = {name: first for first, info in found.items() for name in info.tied}
    for name, info in found.items():
        found[name] = info = replace(info, init_of=tuple(tied.get(of, of) for of in info.init_of))
        if missing := [other for other in info.init_of if other not in found]:
            raise MupError(
                f"The init of {name!r} of {info.layer} follows {missing[0]!r}, missing or shared with another layer. "
                "Set init_of to an unshared parameter of the same layer. If weight_norm or spectral_norm of torch.nn.utils "
                "removed it, use those of torch.nn.utils.parametrizations."
            )
    return found


def _described(model: nn.Module, prefix: str) -> Iterator[tuple[str, tuple[str, str, Param | Alias, bool]]]:
    """Yield for each name its layer, the layer's type, the description, and whether it is a user's. Children come first."""
    for name, module in reversed(list(model.named_modules(remove_duplicate=False))):
        owner, layer = (prefix + name).rstrip("."), type(module).__name__
        inside = f"{owner}." if owner else ""
        for own, tensor in module.named_parameters(recurse=False, remove_duplicate=False):
            yield inside + own, (owner, layer, Param("vector", ("fixed",) * tensor.ndim, UNKNOWN), False)
        for own, (what, function) in describe(module).items():
            # weight_norm computes the weight, so it is no parameter. A user may describe the parameters it comes from.
            if isinstance(what, (Param, Alias)) and (is_users(function) or not is_parametrized(module)):
                yield inside + own, (owner, layer, what, is_users(function))


def _info(name: str, param: Param, tensor: torch.Tensor, layer: str, owner: str, registered: bool) -> ParameterInfo:
    if isinstance(tensor, nn.parameter.UninitializedParameter):
        raise MupError(f"Parameter {name!r} of {layer} has no shape yet (a lazy module). Run the model once first.")
    shape = tuple(map(int, param.shape or tensor.shape))  # arguments may be numbers of NumPy, which JSON lacks
    if len(param.axes) != len(shape):
        raise MupError(
            f"Parameter {name!r} has shape {shape}, but the description of {layer} has {len(param.axes)} axes {param.axes}, "
            "perhaps of another version of the layer. Describe it with neuralop_mup.register_layer."
        )
    siblings = (param.init_of,) if isinstance(param.init_of, str) else param.init_of or ()
    of = tuple(f"{owner}.{sibling}".removeprefix(".") for sibling in siblings) or (name,)
    return ParameterInfo(param, shape, tuple(tensor.shape), layer, owner, of, not tensor.requires_grad, registered)


def fourier_blocks(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield modules that set ``n_modes`` of the convolutions in their ``convs``, such as FNOBlocks."""
    for name, module in model.named_modules():
        # Classes outside neuralop may keep one number for all axes.
        if isinstance(getattr(module, "n_modes", 0), Sequence) and isinstance(getattr(module, "convs", None), nn.ModuleList):
            yield name or type(model).__name__, module


def check_grid(model: nn.Module, grid: tuple[int, ...]) -> None:
    """Raise an error if the grid does not resolve all Fourier modes (neuralop silently truncates them).

    Parameters
    ----------
    model : torch.nn.Module
        A model with Fourier blocks.
    grid : tuple of int
        Number of points on each axis of the data. Only the last ``len(n_modes)`` axes count.

    Raises
    ------
    MupError
        If some ``n_modes`` exceeds the number of points on its axis.
    """
    for _, module in fourier_blocks(model):
        axes = tuple(grid)[-len(module.n_modes) :]
        if any(n > g for n, g in zip(module.n_modes, axes, strict=False)):
            raise MupError(
                f"n_modes = {tuple(module.n_modes)} exceeds the grid of {axes} points, which resolves at most that many "
                "modes. Lower n_modes or use a finer grid."
            )
