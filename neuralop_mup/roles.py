"""What every parameter of every neuralop layer is: the registry that classification walks.

A *layer adapter* is a function ``adapter(layer, place) -> {name: claim}``. ``place`` says whether the layer's inputs
and outputs have a fixed number of channels or grow with width; a claim is a :class:`Param` for one of the layer's own
parameters (dotted names reach through modules that only hold storage) or a :class:`Place` for a child module, which is
then read by the adapter of its own type. Roles follow from type and place alone, never from which dimensions happen
to differ between two models. What no adapter claims is an error (:func:`classify`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

import torch
from neuralop.layers.channel_mlp import ChannelMLP
from neuralop.layers.fno_block import FNOBlocks
from neuralop.layers.normalization_layers import BatchNorm
from neuralop.layers.skip_connections import Flattened1dConv, SoftGating
from neuralop.layers.spectral_convolution import SpectralConv
from neuralop.models import FNO
from tltorch.factorized_tensors.factorized_tensors import DenseTensor
from torch import nn

from neuralop_mup.errors import MupError
from neuralop_mup.infshape import AXES
from neuralop_mup.rules import ROLES, Size, stock_std

__all__ = ["Param", "Place", "classify", "register_layer", "size_of"]


@dataclass(frozen=True)
class Place:
    """Whether the channels that enter and leave a layer grow with width (True) or are fixed (False)."""

    grows_in: bool
    grows_out: bool

    @property
    def matrix_role(self) -> str:
        """Role of a weight matrix here: (fixed → width) input, (width → width) hidden, (width → fixed) readout."""
        if self.grows_in:
            return "hidden" if self.grows_out else "readout"
        return "input"

    @property
    def axis_in(self) -> str:
        return "in" if self.grows_in else "in_fixed"

    @property
    def axis_out(self) -> str:
        return "out" if self.grows_out else "out_fixed"


HIDDEN = Place(True, True)


@dataclass(frozen=True)
class Param:
    """What one parameter is.

    Attributes
    ----------
    role : {"input", "hidden", "readout", "vector", "spectral"}
        Which row of the rules' table applies.
    axes : tuple of str
        Kind of each dimension, one of ``in``, ``out``, ``modes``, ``modes_half`` (a real transform's last axis, which
        stores n_modes // 2 + 1), ``in_fixed``, ``out_fixed``, ``fixed``.
    stock : {"fan_in", "mean_fan", "fan_out", "constant"}
        How the stock initialisation depends on the layer's fans (:func:`neuralop_mup.rules.stock_std`). ``constant``
        (the default) is for vectors only: a matrix has to say how it is drawn.
    stock_of : str, optional
        The sibling parameter whose fans the stock initialisation reads (a bias is drawn by its weight's fan-in).
    shape : tuple of int, optional
        Logical shape where it differs from the tensor's: a kernel's active modes under ``max_n_modes``.
    """

    role: str
    axes: tuple[str, ...]
    stock: str = "constant"
    stock_of: str | None = None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Found:
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
        Type of the layer that owns it.
    stock_of : str
        Qualified name of the parameter whose fans its stock initialisation reads (itself, unless it is a bias).
    """

    param: Param
    shape: tuple[int, ...]
    tensor_shape: tuple[int, ...]
    layer: str
    stock_of: str


Claims = Mapping[str, "Param | Place"]
Adapter = Callable[[nn.Module, Place], Claims]

_ADAPTERS: dict[type, Adapter] = {}


def register_layer(layer_type: type, roles: Adapter | Claims) -> None:
    """Teach this package a layer (or a whole model) that it does not know.

    Parameters
    ----------
    layer_type : type
        Subclass of ``torch.nn.Module``; its subclasses are covered too unless they are registered themselves.
    roles : mapping or callable
        ``{parameter or child name: Param or Place}``, or a function ``(layer, place) -> mapping``.

    Raises
    ------
    MupError
        If ``layer_type`` is not a module type, or a role is not one of the five.
    """
    if not (isinstance(layer_type, type) and issubclass(layer_type, nn.Module)):
        raise MupError(f"register_layer takes a torch.nn.Module class, got {layer_type!r}: pass the class, not an instance.")
    if callable(roles):
        _ADAPTERS[layer_type] = roles
        return
    claims = dict(roles)
    for name, claim in claims.items():
        _check_claim(layer_type, name, claim)
    _ADAPTERS[layer_type] = lambda layer, place: claims


def _check_claim(layer_type: type, name: str, claim: object) -> None:
    where = f"The adapter of {layer_type.__name__} claims {name!r} as {claim!r}"
    if isinstance(claim, Place):
        return
    if not isinstance(claim, Param) or claim.role not in ROLES:
        raise MupError(f"{where}; a claim is a Param with a role of {', '.join(ROLES)}, or a Place for a child module.")
    if not set(claim.axes) <= set(AXES):
        raise MupError(f"{where}; axes are of the kinds {', '.join(AXES)}.")
    if claim.role != "vector" and claim.stock == "constant":
        raise MupError(f"{where}; say how it is drawn: stock='fan_in' for torch's default, 'mean_fan' for a kernel.")


def _adapter(*types: type) -> Callable[[Adapter], Adapter]:
    def register(function: Adapter) -> Adapter:
        for layer_type in types:
            register_layer(layer_type, function)
        return function

    return register


# ---------------------------------------------------------------------------------------------- layers


@_adapter(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def _pointwise(layer: nn.Module, place: Place) -> Claims:
    """A 1×1 convolution: weight (out, in, 1, …), bias (out,); torch draws both from U(±1/√fan_in)."""
    if prod(layer.kernel_size) != 1 or layer.groups != 1:
        return {}
    return {
        "weight": Param(place.matrix_role, (place.axis_out, place.axis_in, *("fixed",) * len(layer.kernel_size)), "fan_in"),
        "bias": Param("vector", (place.axis_out,), "fan_in", stock_of="weight"),
    }


@_adapter(ChannelMLP)
def _channel_mlp(layer: ChannelMLP, place: Place) -> Claims:
    """``fcs``: first from the layer's inputs, last to its outputs, everything between grows with width."""
    last = len(layer.fcs) - 1
    return {
        f"fcs.{i}": Place(place.grows_in if i == 0 else True, place.grows_out if i == last else True)
        for i in range(last + 1)
    }


@_adapter(Flattened1dConv)
def _linear_skip(layer: Flattened1dConv, place: Place) -> Claims:
    return {"conv": place}


@_adapter(SoftGating)
def _soft_gating(layer: SoftGating, place: Place) -> Claims:
    """Gate (1, channels, 1, …), initially ones."""
    axes = ("fixed", place.axis_out, *("fixed",) * (layer.weight.ndim - 2))
    return {"weight": Param("vector", axes), "bias": Param("vector", axes)}


@_adapter(nn.GroupNorm, nn.modules.batchnorm._BatchNorm)
def _norm(layer: nn.Module, place: Place) -> Claims:
    """Affine weight and bias (channels,), initially ones and zeros."""
    return {"weight": Param("vector", (place.axis_out,)), "bias": Param("vector", (place.axis_out,))}


@_adapter(BatchNorm)
def _batch_norm(layer: BatchNorm, place: Place) -> Claims:
    return {"norm": place}


@_adapter(SpectralConv)
def _spectral_conv(layer: SpectralConv, place: Place) -> Claims:
    """Dense kernel (in, out, modes…) or separable (channels, modes…), complex, std √(2/(in+out)); bias (out, 1, …)."""
    if layer.complex_data:
        return {}
    if isinstance(layer.max_n_modes, int) or any(n > m for n, m in zip(layer.n_modes, layer.max_n_modes, strict=True)):
        raise MupError(
            f"n_modes (stored: {layer.n_modes}) must not exceed max_n_modes = {layer.max_n_modes}, one number an axis: "
            "neuralop would slice an empty kernel. Raise max_n_modes or lower n_modes."
        )
    active = tuple(int(n) for n in layer.n_modes)
    channels = (place.axis_out,) if layer.separable else (place.axis_in, place.axis_out)
    stock = "fan_out" if layer.separable else "mean_fan"
    claims = {"bias": Param("vector", (place.axis_out, *("fixed",) * len(active)), stock, stock_of="weight.tensor")}
    if isinstance(layer.weight, DenseTensor):
        axes = (*channels, *("modes",) * (len(active) - 1), "modes_half")
        shape = (*layer.weight.tensor.shape[: len(channels)], *active)
        claims["weight.tensor"] = Param("spectral", axes, stock, shape=shape)
    return claims


@_adapter(FNOBlocks)
def _fno_blocks(layer: FNOBlocks, place: Place) -> Claims:
    return dict.fromkeys(("convs", "fno_skips", "channel_mlp", "channel_mlp_skips", "norm"), Place(True, place.grows_out))


# ---------------------------------------------------------------------------------------------- models


@_adapter(FNO)
def _fno(model: FNO, place: Place) -> Claims:
    return {
        "lifting": Place(False, True),
        "fno_blocks": HIDDEN,
        "projection": Place(True, False),
    }


# ---------------------------------------------------------------------------------------------- the walk


def classify(model: nn.Module, *, trainable: bool = True) -> dict[str, Found]:
    """Read what every parameter of ``model`` is.

    Parameters
    ----------
    model : torch.nn.Module
        The model, on any device (also ``meta``).
    trainable : bool
        Whether a frozen parameter is an error. It is none in a base, which only lends its sizes.

    Returns
    -------
    dict of str to Found
        By qualified name, in ``named_parameters`` order.

    Raises
    ------
    MupError
        If a parameter is claimed by no adapter, shared under two names, frozen, without a shape or of size zero, or if
        ``n_modes`` is odd; the message names the module, its type and the parameter.
    """
    if not isinstance(model, nn.Module):
        raise MupError(f"Expected a torch.nn.Module, got {type(model).__name__}: pass the model itself.")
    _check_even_modes(model)
    claimed = dict(_walk(model, "", Place(False, False)))
    modules = dict(model.named_modules())
    owners: dict[int, str] = {}
    found = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        owner, _, leaf = name.rpartition(".")
        where = f"{leaf!r} of module {owner or '(the model)'!r} ({type(modules[owner]).__name__})"
        if name not in claimed:
            raise MupError(
                f"No adapter claims parameter {where}, so its μP role is unknown: use a model that this package "
                "supports (neuralop.models.FNO with dense kernels), or register the layer with "
                "neuralop_mup.register_layer."
            )
        _check_tensor(tensor, where, owners.get(id(tensor)), trainable)
        owners[id(tensor)] = name
        param, prefix, layer = claimed[name]
        shape = param.shape or tuple(tensor.shape)
        if len(param.axes) != len(shape):
            raise MupError(
                f"Parameter {where} has shape {shape}, but its adapter describes {len(param.axes)} axes {param.axes}: "
                "this version of the layer is unknown here; describe it with neuralop_mup.register_layer."
            )
        found[name] = Found(param, shape, tuple(tensor.shape), layer, prefix + param.stock_of if param.stock_of else name)
    return found


def size_of(name: str, found: Mapping[str, Found], shapes: Mapping[str, tuple[int, ...]]) -> Size:
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
    param = found[name].param
    fan_in, fan_out = _fans(param, shapes[name])
    stock_name = found[name].stock_of
    stock = stock_std(param.stock, *_fans(found[stock_name].param, shapes[stock_name]))
    if param.role != "spectral":
        return Size(fan_in, fan_out, stock)
    modes = [(axis, n) for axis, n in zip(param.axes, shapes[name], strict=True) if axis.startswith("modes")]
    separable = not any(axis in ("in", "in_fixed") for axis in param.axes)
    return Size(
        fan_in,
        fan_out,
        stock,
        modes=tuple(n - 1 if axis == "modes_half" else n // 2 for axis, n in modes),
        blocks=prod(n for _, n in modes),
        block=(1, 1) if separable else (fan_in, fan_out),
    )


def _fans(param: Param, shape: tuple[int, ...]) -> tuple[int, int]:
    sizes = list(zip(param.axes, shape, strict=True))
    return (
        prod(n for axis, n in sizes if axis in ("in", "in_fixed")),
        prod(n for axis, n in sizes if axis in ("out", "out_fixed")),
    )


def _walk(module: nn.Module, prefix: str, place: Place) -> Iterator[tuple[str, tuple[Param, str, str]]]:
    """Yield (qualified name, (claim, its layer's prefix, its layer's type)) for all that adapters claim."""
    if isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential)):
        claims: Claims = dict.fromkeys((name for name, _ in module.named_children()), place)
    else:
        adapter = next((_ADAPTERS[cls] for cls in type(module).__mro__ if cls in _ADAPTERS), None)
        claims = adapter(module, place) if adapter else {}
    for name, claim in claims.items():
        _check_claim(type(module), name, claim)
        if isinstance(claim, Param):
            yield prefix + name, (claim, prefix, type(module).__name__)
        elif (child := _submodule(module, name)) is not None:
            yield from _walk(child, f"{prefix}{name}.", claim)


def _submodule(module: nn.Module, name: str) -> nn.Module | None:
    """The child of that (dotted) name; None where this configuration of the layer has none (a skip that is None)."""
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


def _check_tensor(tensor: torch.Tensor, where: str, other: str | None, trainable: bool) -> None:
    if isinstance(tensor, nn.parameter.UninitializedParameter):
        raise MupError(f"Parameter {where} has no shape yet (a lazy module): run the model once first.")
    if other is not None:
        raise MupError(
            f"Parameter {where} is shared with {other!r}, and one tensor cannot follow two rules: give each its own."
        )
    if tensor.numel() == 0:
        raise MupError(
            f"Parameter {where} has shape {tuple(tensor.shape)}, which holds no numbers: give the model sizes "
            "(channels, channel ratios, modes) of at least 1."
        )
    if trainable and not tensor.requires_grad:
        raise MupError(f"Parameter {where} is frozen (requires_grad=False): call parametrize first, freeze after.")


def _check_even_modes(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, FNOBlocks) and any(n % 2 or n < 2 for n in module.n_modes):
            raise MupError(
                f"n_modes = {tuple(module.n_modes)} of {name or type(model).__name__!r} must be even and at least 2 on "
                "every axis (neuralop counts both signs, n_modes = 2 K, and silently rounds odd numbers): give "
                f"{tuple(max(2, n - n % 2) for n in module.n_modes)}."
            )


def check_grid(model: nn.Module, grid: tuple[int, ...]) -> None:
    """Refuse more Fourier modes than a grid resolves (neuralop silently truncates them).

    Parameters
    ----------
    model : torch.nn.Module
        A model with Fourier blocks.
    grid : tuple of int
        Points on each axis of the data.

    Raises
    ------
    MupError
        If some ``n_modes`` exceeds the number of points on its axis.
    """
    for module in model.modules():
        if isinstance(module, FNOBlocks) and any(n > g for n, g in zip(module.n_modes, grid, strict=False)):
            raise MupError(
                f"n_modes = {tuple(module.n_modes)} is beyond the grid of {tuple(grid)} points, which resolves at most "
                "that many modes: lower n_modes or use a finer grid."
            )
