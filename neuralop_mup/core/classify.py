"""Reading a model: what each of its parameters is, and the numbers of it that the rules read.

The model is walked by the adapters of its layers' types (:mod:`neuralop_mup.core.registry`). A parameter that none of
them claims is an error that names it, never a silent default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.registry import (
    FIXED,
    Alias,
    Claim,
    Param,
    Place,
    claims_of,
    is_registered,
    registrations,
    stands_alone,
)
from neuralop_mup.core.rules import Size, default_std, factor_std
from neuralop_mup.core.unclaimed import how_to_claim
from neuralop_mup.errors import MupError
from neuralop_mup.torch_private import own_modules

__all__ = ["Declaration", "ParameterInfo", "active_modes", "check_grid", "classify", "read_layer", "size_of"]


@dataclass(frozen=True)
class Declaration:
    """A claim of the user's own: on which name, in the registration of which class, and the place that it gives.

    ``place`` is None for a parameter, which says for itself which of its axes grow.
    """

    name: str
    by: str
    place: Place | None = None


@dataclass(frozen=True)
class ParameterInfo:
    """A classified parameter.

    Attributes
    ----------
    param : Param
        What its layer's adapter says it is.
    shape : tuple of int
        Logical shape (active modes on mode axes).
    tensor_shape : tuple of int
        Shape of the tensor itself.
    layer : str
        Type of the layer whose adapter claims it.
    owner : str
        Name of that layer in the model.
    place : Place
        Where in the model that layer stands.
    init_of : tuple of str
        Qualified names of the parameters whose fans its default initialisation reads (itself, unless it is a bias or the
        factor of a kernel).
    declared : Declaration or None
        The user's own claim that decides which of its axes grow; None where that is this package's.
    """

    param: Param
    shape: tuple[int, ...]
    tensor_shape: tuple[int, ...]
    layer: str
    owner: str
    place: Place
    init_of: tuple[str, ...]
    declared: Declaration | None = None


def classify(model: nn.Module, *, trainable: bool = True) -> dict[str, ParameterInfo]:
    """Read what every parameter of ``model`` is.

    Parameters
    ----------
    model : torch.nn.Module
        The model, on any device (also ``meta``).
    trainable : bool
        Whether a frozen parameter is an error. It is none in a base, which only lends its sizes.

    Returns
    -------
    dict of str to ParameterInfo
        By qualified name, in ``named_parameters`` order.

    Raises
    ------
    MupError
        If a parameter is claimed by no adapter, shared under two names, frozen or without a shape, or if ``n_modes`` is
        below 1; the message names the module, its type and the parameter.
    """
    if not isinstance(model, nn.Module):
        raise MupError(f"Expected a torch.nn.Module, got {type(model).__name__}: pass the model itself.")
    _check_modes(model)
    claimed: dict[str, _Placed] = {}
    for name, said_first in _walk(model, "", FIXED):
        claimed.setdefault(name, said_first)  # a class is asked before its parents
    modules = dict(model.named_modules(remove_duplicate=False))  # a shared module goes by each of its names
    tensors = dict(model.named_parameters(remove_duplicate=False))
    owners: dict[int, str] = {}
    found = {}
    for name, tensor in tensors.items():
        owner, _, leaf = name.rpartition(".")
        where = f"{leaf!r} of module {owner or '(the model)'!r} ({type(modules[owner]).__name__})"
        placed = claimed.get(name)
        if placed is None or isinstance(placed.what, Place):  # a place is for modules
            said = {key: placed.what for key, placed in claimed.items()}
            raise MupError(
                f"No adapter claims parameter {where}, so its μP role is unknown: {how_to_claim(model, name, said)}"
            )
        if isinstance(placed.what, Alias):
            of = placed.prefix + placed.what.of
            if tensors.get(of) is not tensor:
                raise MupError(
                    f"Parameter {where} and {of!r} should be one tensor under two names, but are two: tie them again."
                )
            continue
        _check_tensor(tensor, where, owners.get(id(tensor)), trainable and not placed.what.frozen)
        owners[id(tensor)] = name
        found[name] = _describe(name, placed, placed.what, tensor, where)
    for name, f in found.items():
        if missing := [other for other in f.init_of if other not in found]:
            raise MupError(
                f"The adapter of {f.layer} says that the init of {name!r} follows {missing[0]!r}, which the model does "
                "not have: give init_of the name of a parameter of the same layer."
            )
    return found


def read_layer(model: nn.Module, owner: str, place: Place) -> dict[str, ParameterInfo]:
    """What the parameters of one layer are now: its active modes may have changed since the model was classified.

    Parameters
    ----------
    model : torch.nn.Module
        The bare model.
    owner, place : str, Place
        Name and place of the layer, as :class:`ParameterInfo` has them.
    """
    layer = model.get_submodule(owner)
    tensors = dict(layer.named_parameters(prefix=owner))
    return {
        name: _describe(name, placed, placed.what, tensors[name], name)
        for name, placed in _walk(layer, f"{owner}." if owner else "", place)
        if isinstance(placed.what, Param) and name in tensors
    }


@dataclass(frozen=True)
class _Placed:
    """What is said of a name, and of which layer it was asked, and where that stands."""

    what: Param | Place | Alias
    prefix: str
    layer: str
    place: Place
    declared: Declaration | None


def _walk(
    module: nn.Module, prefix: str, place: Place, declared: Declaration | None = None
) -> Iterator[tuple[str, _Placed]]:
    """Yield (qualified name, what is said of it) for all names that adapters claim, in ``module`` and what it holds.

    ``declared`` is the user's own claim that decides on ``place``, if one does.
    """
    if not registrations(module):
        yield from _walk_unregistered(module, prefix)
        return
    cls = type(module).__name__
    inherited = None if stands_alone(module) else declared  # its place decides nothing
    for key, claim in claims_of(module, place).items():
        name, what = prefix + key, claim.what
        decides = _declared(claim, name, cls) or inherited
        yield name, _Placed(what, prefix, cls, place, decides)
        if isinstance(what, Place) and (child := _submodule(module, key)) is not None:
            where = Place(what.grows_in, what.grows_out, beside=place.beside or what.beside)
            yield from _walk(child, f"{name}.", where, decides)


def _declared(claim: Claim, name: str, cls: str) -> Declaration | None:
    """A claim as the user's own, if it is; what a function says of a parameter follows from the place of its layer."""
    if claim.by.ours or not (claim.by.mapping or isinstance(claim.what, Place)):
        return None
    return Declaration(name, cls, claim.what if isinstance(claim.what, Place) else None)


def _walk_unregistered(module: nn.Module, prefix: str) -> Iterator[tuple[str, _Placed]]:
    """The same inside a class that nobody registered: nothing there has a place, and a whole model needs none."""
    for name, child in own_modules(module).items():
        if child is None:
            continue
        if stands_alone(child):
            yield f"{prefix}{name}", _Placed(FIXED, prefix, type(module).__name__, FIXED, None)
            yield from _walk(child, f"{prefix}{name}.", FIXED)
        elif not is_registered(child):
            yield from _walk_unregistered(child, f"{prefix}{name}.")


def _describe(name: str, placed: _Placed, param: Param, tensor: torch.Tensor, where: str) -> ParameterInfo:
    shape = param.shape or tuple(tensor.shape)
    if len(param.axes) != len(shape):
        raise MupError(
            f"Parameter {where} has shape {shape}, but its adapter describes {len(param.axes)} axes {param.axes}: "
            "this version of the layer is unknown here; describe it with neuralop_mup.register_layer."
        )
    siblings = (param.init_of,) if isinstance(param.init_of, str) else param.init_of or ()
    return ParameterInfo(
        param,
        shape,
        tuple(tensor.shape),
        placed.layer,
        placed.prefix.removesuffix("."),
        placed.place,
        tuple(placed.prefix + sibling for sibling in siblings) or (name,),
        placed.declared,
    )


def size_of(name: str, found: Mapping[str, ParameterInfo], shapes: Mapping[str, tuple[int, ...]]) -> Size:
    """The numbers of parameter ``name`` that the rules read, given every parameter's logical shape.

    Parameters
    ----------
    name : str
        Qualified name of the parameter.
    found : mapping
        What :func:`classify` returned.
    shapes : mapping
        Logical shapes of the model itself, or of base.
    """

    def axes(names: tuple[str, ...]) -> list[tuple[str, int]]:
        return [pair for n in names for pair in zip(found[n].param.axes, shapes[n], strict=True)]

    param, parts = found[name].param, found[name].init_of
    own, whole = axes((name,)), axes(parts)
    fan_in, fan_out = _size(own, "in", "in_fixed", "rank_in"), _size(own, "out", "out_fixed", "rank_out")
    kernel_in, kernel_out = _size(whole, "in", "in_fixed"), _size(whole, "out", "out_fixed")
    if callable(param.init):
        of_kernel = float(param.init(shapes[name]))
    elif param.init == "fan_in":  # torch counts the stencil of a convolution
        of_kernel = default_std("fan_in", prod(n for kind, n in whole if kind not in ("out", "out_fixed")), kernel_out)
    else:
        of_kernel = default_std(param.init, kernel_in, kernel_out)
    std, std_ratio = of_kernel, 1.0
    if param.rank_power is not None:
        ranks = _size(whole, "rank_in")
        std = factor_std(of_kernel, ranks, len(parts), param.rank_power)
        std_ratio = std / factor_std(of_kernel, ranks, len(parts), 0.5)
    if "pair" in param.axes and not callable(param.init):
        std /= 2**0.5  # the root mean square of a complex number's parts
    # A kernel's mode factor κ is carried once: by the kernel, or by the factor that makes its output channels.
    if param.role != "spectral" or (
        param.rank_power is not None and not any(kind in ("out", "out_fixed") for kind, _ in own)
    ):
        return Size(fan_in, fan_out, std, std_ratio=std_ratio)
    modes = [(kind, n) for kind, n in whole if kind.startswith("modes")]
    separable = not any(kind in ("in", "in_fixed") for kind, _ in whole)
    return Size(
        fan_in,
        fan_out,
        std,
        modes=tuple(_PER_SIGN[kind](n) for kind, n in modes),
        blocks=prod(n for _, n in modes),
        block=(1, 1) if separable else (kernel_in, kernel_out),
        std_ratio=std_ratio,
        one_sign=param.init == "positive",
    )


# Modes per sign, K, of an axis that stores n entries.
_PER_SIGN = {"modes": lambda n: n // 2, "modes_half": lambda n: n - 1, "modes_single": lambda n: n}


def _size(axes: list[tuple[str, int]], *kinds: str) -> int:
    return prod(n for kind, n in axes if kind in kinds)


def _submodule(module: nn.Module, name: str) -> nn.Module | None:
    """The child of that (dotted) name; None where this configuration of the layer has none (a skip that is None)."""
    child: Any = module
    for part in name.split("."):
        child = getattr(child, part, None)
    return child if isinstance(child, nn.Module) else None


def _check_tensor(tensor: torch.Tensor, where: str, other: str | None, trainable: bool) -> None:
    if isinstance(tensor, nn.parameter.UninitializedParameter):
        raise MupError(f"Parameter {where} has no shape yet (a lazy module): run the model once first.")
    if other is not None:
        raise MupError(
            f"Parameter {where} is shared with {other!r}, and one tensor cannot follow two rules: give each its own."
        )
    if trainable and not tensor.requires_grad:
        raise MupError(f"Parameter {where} is frozen (requires_grad=False): call parametrize first, freeze after.")


def fourier_blocks(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Modules that hand ``n_modes`` on to the convolutions in their ``convs``: FNOBlocks and its kin."""
    for name, module in model.named_modules():
        if hasattr(module, "n_modes") and isinstance(getattr(module, "convs", None), nn.ModuleList):
            yield name or type(model).__name__, module


def _check_modes(model: nn.Module) -> None:
    for name, module in fourier_blocks(model):
        if any(n < 1 for n in module.n_modes):
            raise MupError(
                f"n_modes = {tuple(module.n_modes)} of {name!r} must be at least 1 on every axis (neuralop builds a kernel "
                f"without numbers otherwise): give {tuple(max(1, n) for n in module.n_modes)}."
            )


def active_modes(conv: Any) -> tuple[int, ...]:
    """What a convolution says of its active modes, cheap enough to ask at every step."""
    return (*conv.n_modes, *getattr(conv, "half_n_modes", ()))


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
