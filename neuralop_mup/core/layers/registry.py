"""The vocabulary that describes a layer's parameters, and the registry of described layers.

A layer type is described once, as if it stood in the middle of a model, where its input and output channels grow with width.
``describe(layer)`` returns a description for each of the layer's own parameters: a :class:`Param`, an :class:`Alias` for a
second name of the same tensor, or a :class:`Copy`. A dotted name reaches into modules that only hold storage. Which channels
do grow is inferred later (:mod:`neuralop_mup.core.width_dims`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.infshape import AXES
from neuralop_mup.core.rules import ROLES
from neuralop_mup.errors import MupError, nearest


@dataclass(frozen=True)
class Param:
    """What one parameter is, as it stands in the middle of a model, and how its layer's constructor draws it.

    Attributes
    ----------
    role : {"input", "hidden", "readout", "vector", "spectral"}
        Which row of the rules' table applies. Of the first three ``hidden`` is enough: whether a matrix reads or writes
        channels that do not grow is measured.
    axes : tuple of str
        Kind of each dimension: ``in``, ``out`` (channels, which grow with width where that is measured), ``fixed``;
        ``modes``, ``modes_half`` (a real transform's last axis, which stores n_modes // 2 + 1), ``modes_single`` (one
        sign alone, K entries); ``rank_in``, ``rank_out`` (a rank index that a factor sums over, or produces); ``pair``
        (real and imaginary part). ``in_fixed`` and ``out_fixed`` are channels that never grow.
    init : {"fan_in", "mean_fan", "fan_out", "positive", "constant"} or callable, default "constant"
        How the default initialisation depends on the layer's fans (:func:`neuralop_mup.core.rules.default_std`), or a
        function of the parameter's logical shape that returns its root mean square. ``constant`` (the default) is ones or
        zeros, for vectors only: a matrix has to say how it is drawn.
    draw : callable, optional
        Function of a tensor and that root mean square which draws the tensor in place. For what the layer's
        ``reset_parameters`` does not draw; only a model that is built on the meta device needs it.
    init_of : str or tuple of str, optional
        The sibling parameter whose fans the default initialisation reads (a bias is drawn by its weight's fan-in); all
        factors together where the sibling is a factorized kernel. Itself if not given.
    shape : tuple of int, optional
        Logical shape where it differs from the tensor's: a kernel's active modes under ``max_n_modes``.
    rank_power : float, optional
        For a factor of the kernel ``init_of``: see :func:`neuralop_mup.core.rules.factor_std`.
    frozen : bool, default False
        Whether the layer's own constructor freezes it.

    Examples
    --------
    A linear layer's weight and bias, as torch draws them:

    >>> import neuralop_mup as nm
    >>> weight = nm.Param("hidden", ("out", "in"), init="fan_in")
    >>> bias = nm.Param("vector", ("out",), init="fan_in", init_of="weight")
    """

    role: str
    axes: tuple[str, ...]
    init: str | Callable[[tuple[int, ...]], float] = "constant"
    init_of: str | tuple[str, ...] | None = None
    shape: tuple[int, ...] | None = None
    rank_power: float | None = None
    frozen: bool = False
    draw: Callable[[torch.Tensor, float], Any] | None = None


@dataclass(frozen=True)
class Alias:
    """A second name for the tensor that the layer's parameter ``of`` holds: counted once, under that name.

    Attributes
    ----------
    of : str
        Name of that parameter in the layer.

    Examples
    --------
    >>> import torch
    >>> import neuralop_mup as nm
    >>> class Scale(torch.nn.Module):
    ...     def __init__(self, channels):
    ...         super().__init__()
    ...         self.weight = self.twin = torch.nn.Parameter(torch.ones(channels))
    >>> nm.register_layer(Scale, {"weight": nm.Param("vector", ("out",)), "twin": nm.Alias("weight")})
    """

    of: str


@dataclass(frozen=True)
class Copy:
    """A child that its layer makes as a copy of the child ``of``, weights included, where the two are alike."""

    of: str


def normal(tensor: torch.Tensor, std: float) -> None:
    """A way to draw a parameter in place."""
    tensor.normal_(0, std)


def scaled_normal(tensor: torch.Tensor, std: float) -> None:
    """The same distribution, with the rounding of a constructor that multiplies standard normal numbers."""
    tensor.normal_().mul_(std)


Description = Mapping[str, "Param | Alias | Copy"]
Describe = Callable[[Any], Description]

UNKNOWN = "unknown"  # init of a parameter that nobody described

# By type; by name where the package is not imported here: "physicsnemo.FNO" is class FNO of top package physicsnemo.
_DESCRIBED: dict[type | str, Describe] = {}
_OURS: set[Describe] = set()
# Children of a layer whose Fourier layers are computed beside others of its, and so add nothing to depth.
BESIDE: dict[type, tuple[str, ...]] = {}
# Layers that are applied once for each time step.
RECURRENT: set[type] = set()


def register_layer(layer_type: type, params: Describe | Description) -> None:
    """Teach this package the raw parameters of a layer that it does not know.

    It is needed for parameters of which two dimensions grow. Others are measured, and layers that are put together from
    known ones need no line.

    Parameters
    ----------
    layer_type : type
        Subclass of ``torch.nn.Module``; its subclasses are covered, too.
    params : mapping or callable
        ``{parameter name: Param or Alias}``, or a function ``layer -> mapping``. Of a class that is derived from a known one
        only what is new, or what is to be read otherwise than the parent says.

    Raises
    ------
    MupError
        If ``layer_type`` is not a module type, or a role is not one of the five.

    Examples
    --------
    >>> import torch
    >>> import neuralop_mup as nm
    >>> class Mixer(torch.nn.Module):
    ...     def __init__(self, channels):
    ...         super().__init__()
    ...         self.weight = torch.nn.Parameter(0.02 * torch.randn(channels, channels))
    >>> nm.register_layer(Mixer, {"weight": nm.Param("hidden", ("out", "in"), init=lambda shape: 0.02)})
    """
    if not (isinstance(layer_type, type) and issubclass(layer_type, nn.Module)):
        raise MupError(f"register_layer takes a torch.nn.Module class, got {layer_type!r}: pass the class, not an instance.")
    if callable(params):
        _DESCRIBED[layer_type] = params
        return
    given = dict(params)
    for name, what in given.items():
        _check(layer_type, name, what)
    _DESCRIBED[layer_type] = lambda layer: given


def _check(cls: type, name: str, what: object, layer: nn.Module | None = None) -> None:
    # A registration of the user's may name what this layer lacks (a bias that is None), but nothing that no layer has.
    if layer is not None and not hasattr(layer, name.partition(".")[0]):
        raise MupError(
            f"The registration of {cls.__name__} names {name!r}, and it has no such parameter: "
            f"{nearest(name, [own for own, _ in layer.named_parameters()])}"
        )
    where = f"The description of {cls.__name__} gives {name!r} as {what!r}"
    if isinstance(what, (Alias, Copy)):
        return
    if not isinstance(what, Param) or what.role not in ROLES:
        raise MupError(f"{where}; give a Param with a role of {', '.join(ROLES)}, or an Alias.")
    if not set(what.axes) <= set(AXES):
        raise MupError(f"{where}; axes are of the kinds {', '.join(AXES)}.")
    if what.role != "vector" and what.init == "constant":
        raise MupError(
            f"{where}; say how it is drawn: init='fan_in' for torch's default, 'mean_fan' for a kernel, or a function of "
            "its shape that returns its root mean square, such as lambda shape: 0.02."
        )


def layer_type(*types: type | str) -> Callable[[Describe], Describe]:
    """Decorator for this package's own descriptions; classes that need not be installed go by "top package.class"."""

    def register(function: Describe) -> Describe:
        _DESCRIBED.update(dict.fromkeys(types, function))
        _OURS.add(function)
        return function

    return register


def described_as(cls: type) -> list[Describe]:
    """What describes a class itself, by its type (which may be the user's) and by its name."""
    keys = (cls, f"{cls.__module__.partition('.')[0]}.{cls.__name__}")
    return [_DESCRIBED[key] for key in keys if key in _DESCRIBED]


def describe(layer: nn.Module) -> dict[str, tuple[Param | Alias | Copy, Describe]]:
    """What is said of the names in a layer, and by which description; nothing where the type is unknown.

    A class says only what is new in it, or to be read otherwise: its parents are asked for what that leaves out.
    """
    found: dict[str, tuple[Param | Alias | Copy, Describe]] = {}
    for cls in type(layer).__mro__:
        for function in described_as(cls):
            for name, what in function(layer).items():
                _check(cls, name, what, layer if is_users(function) else None)
                found.setdefault(name, (what, function))
    return found


def is_users(function: Describe) -> bool:
    """Whether a description was given to :func:`register_layer`."""
    return function not in _OURS


def registration(name: str, owner: str, layer: str) -> str:
    """The line that describes it: by its layer, or where that is a list of parameters by the layer that has the list."""
    own = name.rpartition(".")[2]
    if layer in ("ParameterList", "ParameterDict"):
        whose, _, kept = owner.rpartition(".")
        own, layer = f"{kept}.{own}", f"type(model.{whose})" if whose else "type(model)"
    return f"nm.register_layer({layer}, {{{own!r}: nm.Param(…)}})"


def is_known(layer: nn.Module) -> bool:
    """Return whether one of this package's own descriptions covers a layer."""
    return any(not is_users(function) for cls in type(layer).__mro__ for function in described_as(cls))
