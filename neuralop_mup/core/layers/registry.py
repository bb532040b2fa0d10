"""Define descriptions of layers' parameters, and the registry of described layers.

Each layer type has one description. It treats the layer as part of the middle of a model, so that its input and output
channels grow with width. For a specific model, :mod:`neuralop_mup.core.width_dims` infers which channels grow.
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
    """Description of one parameter of a layer in the middle of a model, including its default initialisation.

    Attributes
    ----------
    role : {"input", "hidden", "readout", "vector", "spectral"}
        Role of the parameter, which selects the rule. Use ``hidden`` for every matrix, because inputs and readouts are
        inferred.
    axes : tuple of str
        Kind of each dimension. For channels, use ``in`` and ``out`` if they may grow with width, otherwise ``in_fixed`` and
        ``out_fixed``. For modes, use ``modes``, ``modes_half`` (last axis of a real transform, with n_modes // 2 + 1
        entries) or ``modes_single`` (one sign of each mode, with K entries). Other kinds are ``rank_in`` and ``rank_out``
        (rank index that a factor sums over or produces), ``pair`` (real and imaginary part) and ``fixed``.
    init : {"fan_in", "mean_fan", "fan_out", "positive", "constant"} or callable, default "constant"
        How the default initialisation depends on the layer's fans (:func:`neuralop_mup.core.rules.default_std`), or a
        function that maps the parameter's logical shape to its root mean square. ``constant`` is only allowed for vectors.
    draw : callable, optional
        ``draw(tensor, root_mean_square)`` draws the tensor in place. It is only needed for models on the meta device, and
        only for parameters that the layer's ``reset_parameters`` does not draw.
    init_of : str or tuple of str, optional
        Sibling parameter whose fans determine the default initialisation, e.g. the weight for a bias. For a factorized
        kernel, list all factors. Default: the parameter itself.
    shape : tuple of int, optional
        Logical shape, if it differs from the shape of the tensor because a kernel has fewer active modes (``max_n_modes``).
    rank_power : float, optional
        Exponent for a factor of the kernel ``init_of``, see :func:`neuralop_mup.core.rules.factor_std`.
    frozen : bool, default False
        Whether the layer's constructor freezes the parameter.
    divided : bool, default False
        Whether the layer's forward pass divides its input by ``infshape.width_mult()``, as ``mup.MuReadout`` does.
    one_sign : bool, optional
        Whether all values of a kernel have the same sign, if ``init`` is a function. Their mean is then not zero, and a sum
        over n channels grows with n instead of √n, so the initialization gets an additional factor 1/√r. By default, only
        ``positive`` kernels have one sign.

    Examples
    --------
    Weight and bias of a linear layer, with torch's initialisation:

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
    divided: bool = False
    one_sign: bool | None = None


@dataclass(frozen=True)
class Alias:
    """Second name for the layer's parameter ``of``. The plan lists the tensor once, under its first name.

    Attributes
    ----------
    of : str or None
        Name of the parameter in the layer, or None if the tensor belongs to another layer, which describes it.

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

    of: str | None


@dataclass(frozen=True)
class Copy:
    """Child that its layer creates as a copy of the child ``of``, including its weights, if both have equal shapes."""

    of: str


def normal(tensor: torch.Tensor, std: float) -> None:
    """Draw a tensor in place from a normal distribution."""
    tensor.normal_(0, std)


def scaled_normal(tensor: torch.Tensor, std: float) -> None:
    """Draw as in :func:`normal`, but round like constructors that scale standard normal numbers."""
    tensor.normal_().mul_(std)


Description = Mapping[str, "Param | Alias | Copy"]
Describe = Callable[[Any], Description]

UNKNOWN = "unknown"  # init of parameters without a description

# Keys are types, or names of classes in packages that are not imported here. For example, "physicsnemo.FNO" is the class FNO
# of physicsnemo.
_DESCRIBED: dict[type | str, Describe] = {}
_OURS: set[Describe] = set()
# Names of children that run in parallel to other children, so that their Fourier layers do not add to the depth.
BESIDE: dict[type, tuple[str, ...]] = {}
# Layers that a model applies at every time step.
RECURRENT: set[type] = set()


def register_layer(layer_type: type, params: Describe | Description) -> None:
    """Describe the parameters of a layer that this package does not describe.

    This is only needed for parameters with two growing dimensions. :func:`neuralop_mup.parametrize` handles all other
    parameters, and recognizes the kernels of most published FNO code.

    Parameters
    ----------
    layer_type : type
        Subclass of ``torch.nn.Module``. The registration also applies to its subclasses.
    params : mapping or callable
        ``{parameter name: Param or Alias}``, or a function ``layer -> mapping``. For a subclass of a described layer, only
        list parameters that are new or different. A second mapping for the same class extends the first, and replaces
        entries with the same name. A function replaces all earlier entries.

    Raises
    ------
    MupError
        If ``layer_type`` is not a module class, or if a role is not one of the five roles.

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
        raise MupError(
            f"layer_type must be a subclass of torch.nn.Module, got {layer_type!r}. Pass the class, not an instance."
        )
    if callable(params):
        _DESCRIBED[layer_type] = params
        return
    given = dict(params)
    for name, what in given.items():
        _check(layer_type, name, what)
    earlier = getattr(_DESCRIBED.get(layer_type), "mapping", {})
    _DESCRIBED[layer_type] = _Mapped({**earlier, **given}, frozenset(given))


@dataclass(frozen=True, eq=False)
class _Mapped:
    """User's mappings for a class. Earlier entries are ignored if the layer has no such parameter (a typo)."""

    mapping: Description
    newest: frozenset[str]

    def __call__(self, layer: Any) -> Description:
        return {
            name: what
            for name, what in self.mapping.items()
            if name in self.newest or hasattr(layer, name.partition(".")[0])
        }


def _check(cls: type, name: str, what: object, layer: nn.Module | None = None) -> None:
    # A registration may list a parameter that is None in this layer, such as a bias, but not an unknown name.
    if layer is not None and not hasattr(layer, name.partition(".")[0]):
        raise MupError(
            f"The registration of {cls.__name__} lists {name!r}, but the layer has no such parameter: "
            f"{nearest(name, [own for own, _ in layer.named_parameters()])}"
        )
    where = f"The description of {name!r} in {cls.__name__} is {what!r}"
    if isinstance(what, (Alias, Copy)):
        return
    if not isinstance(what, Param) or what.role not in ROLES:
        raise MupError(f"{where}. It must be a Param with one of the roles {', '.join(ROLES)}, or an Alias.")
    if not set(what.axes) <= set(AXES):
        raise MupError(f"{where}. Each axis must be one of {', '.join(AXES)}.")
    if what.role != "vector" and what.init == "constant":
        raise MupError(
            f"{where}. It has no initialisation. Add init='fan_in' for torch's default, init='mean_fan' for a kernel, or a "
            "function of the shape that returns the root mean square, such as init=lambda shape: 0.02."
        )


def layer_type(*types: type | str) -> Callable[[Describe], Describe]:
    """Register a description in this package. Classes of optional packages are named "top-level package.class"."""

    def register(function: Describe) -> Describe:
        _DESCRIBED.update(dict.fromkeys(types, function))
        _OURS.add(function)
        return function

    return register


def described_as(cls: type) -> list[Describe]:
    """Return the descriptions that are registered for exactly this class, by type or by name."""
    keys = (cls, f"{cls.__module__.partition('.')[0]}.{cls.__name__}")
    return [_DESCRIBED[key] for key in keys if key in _DESCRIBED]


def describe(layer: nn.Module) -> dict[str, tuple[Param | Alias | Copy, Describe]]:
    """Return each described parameter of a layer with the function that describes it.

    Names that a class does not describe are taken from the descriptions of its base classes. The result is empty for unknown
    types.
    """
    found: dict[str, tuple[Param | Alias | Copy, Describe]] = {}
    for cls in type(layer).__mro__:
        for function in described_as(cls):
            for name, what in function(layer).items():
                _check(cls, name, what, layer if is_users(function) else None)
                found.setdefault(name, (what, function))
    return found


def is_users(function: Describe) -> bool:
    """Return whether a description comes from :func:`register_layer`."""
    return function not in _OURS


def registration(params: Mapping[str, str], owner: str, layer: str) -> str:
    """Return a line of Python code that registers parameters with the descriptions in ``params``.

    Parameters in a ParameterList or ParameterDict are registered with the layer that owns it.
    """
    if layer in ("ParameterList", "ParameterDict"):
        whose, _, kept = owner.rpartition(".")
        params = {f"{kept}.{own}": param for own, param in params.items()}
        layer = f"type(model.{whose})" if whose else "type(model)"
    texts = {*params.values()}
    if len(params) > 1 and len(texts) == 1:
        return f"nm.register_layer({layer}, dict.fromkeys({tuple(params)}, {texts.pop()}))"
    return f"nm.register_layer({layer}, {{{', '.join(f'{own!r}: {param}' for own, param in params.items())}}})"


def is_known(layer: nn.Module) -> bool:
    """Return whether one of this package's own descriptions covers a layer."""
    return any(not is_users(function) for cls in type(layer).__mro__ for function in described_as(cls))
