"""Describe every parameter of a model.

The description of a module depends on its type and treats it as a layer in the middle of a model
(:mod:`neuralop_mup.core.layers.registry`). :mod:`neuralop_mup.core.width_dims` then infers which dimensions grow.
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
        Description of the parameter by its layer.
    shape, tensor_shape : tuple of int
        Logical shape (with active modes on mode axes), and shape of the tensor.
    layer, owner : str
        Type of the layer that describes the parameter, and qualified name of this layer.
    init_of : tuple of str
        Qualified names of the parameters that determine the fans of the default initialisation. This is the parameter
        itself, except for biases and factors of kernels.
    frozen : bool
        Whether ``requires_grad`` is False.
    registered : bool
        Whether the description comes from a user.
    shared : str or None
        Another name of the same tensor that has a different description.
    tied : tuple of str
        Other names of the same tensor that have the same description.
    base_shape : tuple of int
        Logical shape in the base model, which is inferred later.
    lacking : bool
        Whether the base model does not have this parameter because it has fewer layers. ``base_shape`` is then the shape in
        its last layer.
    fixed : bool
        Whether no dimension of this parameter or of the parameters ``init_of`` grows.
    recognised : bool
        Whether the parameter was recognised as a Fourier kernel (:mod:`neuralop_mup.core.raw_kernels`).
    proposal : str
        Python code of a description, if only one of the two tests for kernels passed.
    evidence : str
        Sentences about these tests, for an error message.
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
    """Return the description of every parameter under the assumption that all channels grow.

    Parameters
    ----------
    model : torch.nn.Module
        A model or a submodule, on any device including ``meta``.
    prefix : str
        Prefix of the submodule's parameter names in the top-level model.

    Returns
    -------
    dict of str to ParameterInfo
        Descriptions by qualified name, in the order of ``named_parameters``. Parameters without a description
        have the init ``unknown``.

    Raises
    ------
    MupError
        If a parameter has no shape yet or does not match its description, if a registration lists a parameter that does not
        exist, or if ``n_modes`` is below 1.
    """
    if not isinstance(model, nn.Module):
        raise MupError(f"Expected a torch.nn.Module, got {type(model).__name__}. Pass the model itself.")
    for name, module in fourier_blocks(model):
        if any(n < 1 for n in module.n_modes):
            raise MupError(
                f"n_modes of {name!r} must be at least 1 on every axis, got {tuple(module.n_modes)}. Otherwise kernels are "
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
                    f"{name!r} of {layer} must be the weight of another layer, but no other layer has this weight. Tie the "
                    "two weights."
                )
            found[first] = replace(found[first], param=replace(found[first].param, divided=True))
        elif isinstance(what, Alias):
            of = f"{owner}.{what.of}".removeprefix(".")
            if tensors.get(of) is not tensor:
                raise MupError(
                    f"Parameters {name!r} and {of!r} must be the same tensor, but they are separate tensors. Tie them again."
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
                f"The init of {name!r} of {info.layer} refers to {missing[0]!r}, which is missing or shared with another "
                "layer. Set init_of to an unshared parameter of the same layer. If weight_norm or spectral_norm from "
                "torch.nn.utils removed it, use the versions in torch.nn.utils.parametrizations."
            )
    return found


def _described(model: nn.Module, prefix: str) -> Iterator[tuple[str, tuple[str, str, Param | Alias, bool]]]:
    """Yield, for each name, the layer, its type, the description, and whether a user wrote it. Children come first."""
    for name, module in reversed(list(model.named_modules(remove_duplicate=False))):
        owner, layer = (prefix + name).rstrip("."), type(module).__name__
        inside = f"{owner}." if owner else ""
        for own, tensor in module.named_parameters(recurse=False, remove_duplicate=False):
            yield inside + own, (owner, layer, Param("vector", ("fixed",) * tensor.ndim, UNKNOWN), False)
        for own, (what, function) in describe(module).items():
            # With weight_norm, the weight is computed and is not a parameter. A user may describe the parameters that it is
            # computed from.
            if isinstance(what, (Param, Alias)) and (is_users(function) or not is_parametrized(module)):
                yield inside + own, (owner, layer, what, is_users(function))


def _info(name: str, param: Param, tensor: torch.Tensor, layer: str, owner: str, registered: bool) -> ParameterInfo:
    if isinstance(tensor, nn.parameter.UninitializedParameter):
        raise MupError(
            f"Parameter {name!r} of {layer} has no shape yet because its module is lazy. Run the model once to initialize "
            "it."
        )
    shape = tuple(map(int, param.shape or tensor.shape))  # convert NumPy scalars, which JSON does not support
    if len(param.axes) != len(shape):
        raise MupError(
            f"Parameter {name!r} has shape {shape}, but the description of {layer} has {len(param.axes)} axes "
            f"{param.axes}. The description may be for another version of the layer. Describe your version with "
            "neuralop_mup.register_layer."
        )
    siblings = (param.init_of,) if isinstance(param.init_of, str) else param.init_of or ()
    of = tuple(f"{owner}.{sibling}".removeprefix(".") for sibling in siblings) or (name,)
    return ParameterInfo(param, shape, tuple(tensor.shape), layer, owner, of, not tensor.requires_grad, registered)


def fourier_blocks(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield modules such as FNOBlocks that set the modes of the convolutions in ``convs``."""
    for name, module in model.named_modules():
        # Classes outside neuralop may store one number for all axes.
        if isinstance(getattr(module, "n_modes", 0), Sequence) and isinstance(getattr(module, "convs", None), nn.ModuleList):
            yield name or type(model).__name__, module


def check_grid(model: nn.Module, grid: tuple[int, ...]) -> None:
    """Raise MupError if the grid does not resolve all Fourier modes, which neuralop would silently truncate.

    Parameters
    ----------
    model : torch.nn.Module
        A model with Fourier blocks.
    grid : tuple of int
        Number of points on each axis of the data. Only the last ``len(n_modes)`` axes are used.

    Raises
    ------
    MupError
        If ``n_modes`` exceeds the number of points on an axis.
    """
    for _, module in fourier_blocks(model):
        axes = tuple(grid)[-len(module.n_modes) :]
        if any(n > g for n, g in zip(module.n_modes, axes, strict=False)):
            raise MupError(
                f"n_modes = {tuple(module.n_modes)} exceeds the grid of {axes} points, which cannot resolve more modes "
                "than points. Reduce n_modes or use a finer grid."
            )
