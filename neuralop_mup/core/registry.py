"""What a layer's parameters are: the words for it, and the registry of layers (neuralop's are in ``adapters``).

A *layer adapter* is a function ``adapter(layer, place) -> {name: claim}``. ``place`` says whether the layer's inputs
and outputs have a fixed number of channels or grow with width. A claim is a :class:`Param` for one of the layer's own
parameters (dotted names reach through modules that only hold storage), a :class:`Place` for a child module, which is
then read by the adapter of its own type, or an :class:`Alias` for a second name of the same tensor. Roles follow from
type and place alone, never from which dimensions happen to differ between two models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.infshape import AXES
from neuralop_mup.core.rules import ROLES
from neuralop_mup.errors import MupError
from neuralop_mup.torch_private import own_modules

__all__ = [
    "FIXED",
    "HIDDEN",
    "Adapter",
    "Alias",
    "Claim",
    "Claims",
    "Copy",
    "Param",
    "Place",
    "Registration",
    "adapter_of",
    "claims_of",
    "register_layer",
]


@dataclass(frozen=True)
class Place:
    """Where a layer stands in the model.

    Attributes
    ----------
    grows_in, grows_out : bool
        Whether the channels that enter and leave it grow with width (True) or are fixed (False).
    beside : bool, default False
        Whether it stands beside another layer, as the keys of an attention do beside its values: the Fourier layers in it
        then add nothing to the model's depth.

    Examples
    --------
    >>> import neuralop_mup as nm
    >>> lifting = nm.Place(grows_in=False, grows_out=True)
    >>> lifting.matrix_role, lifting.axis_in, lifting.axis_out
    ('input', 'in_fixed', 'out')
    """

    grows_in: bool
    grows_out: bool
    beside: bool = False

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
FIXED = Place(False, False)


@dataclass(frozen=True)
class Copy(Place):
    """The place of a child that its layer makes as a copy of the child ``of``, weights included, where they are alike."""

    of: str = ""


@dataclass(frozen=True)
class Param:
    """What one parameter is, and how its layer's constructor draws it.

    Attributes
    ----------
    role : {"input", "hidden", "readout", "vector", "spectral"}
        Which row of the rules' table applies.
    axes : tuple of str
        Kind of each dimension: ``in``, ``out`` (channels that grow with width), ``in_fixed``, ``out_fixed``, ``fixed``;
        ``modes``, ``modes_half`` (a real transform's last axis, which stores n_modes // 2 + 1), ``modes_single`` (one
        sign alone, K entries); ``rank_in``, ``rank_out`` (a rank index that a factor sums over, or produces); ``pair``
        (real and imaginary part).
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
        Whether the layer's own constructor freezes it. Any other frozen parameter is an error.

    Examples
    --------
    A linear layer's weight and bias between features that grow with width, as torch draws them:

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
    draw: Callable[[torch.Tensor, float], None] | None = None


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


Claims = Mapping[str, "Param | Place | Alias"]
Adapter = Callable[[Any, Place], Claims]


@dataclass(frozen=True)
class Registration:
    """What was registered for one type.

    Attributes
    ----------
    adapter : callable
        What it says of a layer of that type in a place.
    ours : bool
        Whether the adapter is this package's, which describe a layer whole.
    mapping : bool
        Whether it was given as a mapping, which says the same in every place.
    whole : bool
        Whether the type is a model, whose inputs and outputs have fixed channels wherever it stands.
    """

    adapter: Adapter
    ours: bool = False
    mapping: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Claim:
    """What is said of one name in a layer, and in which registration."""

    what: Param | Place | Alias
    by: Registration


# By type; by name where the package is not imported here: "physicsnemo.FNO" is class FNO of top package physicsnemo.
_REGISTRATIONS: dict[type | str, Registration] = {}


def register_layer(layer_type: type, roles: Adapter | Claims) -> None:
    """Teach this package a layer (or a whole model) that it does not know.

    Parameters
    ----------
    layer_type : type
        Subclass of ``torch.nn.Module``; its subclasses are covered, too.
    roles : mapping or callable
        ``{parameter or child name: Param, Place or Alias}``, or a function ``(layer, place) -> mapping``. Of a class that is
        derived from a known one only what is new, or what is to be read otherwise than the parent says.

    Raises
    ------
    MupError
        If ``layer_type`` is not a module type, or a role is not one of the five.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> class GatedFNO(FNO):
    ...     def __init__(self, *args, **kwargs):
    ...         super().__init__(*args, **kwargs)
    ...         self.gate = torch.nn.Parameter(torch.ones(1, self.hidden_channels, 1))
    >>> nm.register_layer(GatedFNO, {"gate": nm.Param("vector", ("fixed", "out", "fixed"))})
    >>> model = nm.parametrize(GatedFNO((8,), 1, 1, 16), base=lambda: GatedFNO((8,), 1, 1, 8))
    >>> nm.summary(model)["gate"].role
    'vector'
    """
    if not (isinstance(layer_type, type) and issubclass(layer_type, nn.Module)):
        raise MupError(f"register_layer takes a torch.nn.Module class, got {layer_type!r}: pass the class, not an instance.")
    if callable(roles):
        _REGISTRATIONS[layer_type] = Registration(roles)
        return
    claims = dict(roles)
    for name, claim in claims.items():
        _check_claim(layer_type, name, claim)
    _REGISTRATIONS[layer_type] = Registration(lambda layer, place: claims, mapping=True)


def _check_claim(layer_type: type, name: str, claim: object) -> None:
    where = f"The adapter of {layer_type.__name__} claims {name!r} as {claim!r}"
    if isinstance(claim, (Place, Alias)):
        return
    if not isinstance(claim, Param) or claim.role not in ROLES:
        raise MupError(
            f"{where}; a claim is a Param with a role of {', '.join(ROLES)}, a Place for a child module, or an Alias."
        )
    if not set(claim.axes) <= set(AXES):
        raise MupError(f"{where}; axes are of the kinds {', '.join(AXES)}.")
    if claim.role != "vector" and claim.init == "constant":
        raise MupError(
            f"{where}; say how it is drawn: init='fan_in' for torch's default, 'mean_fan' for a kernel, or a function of "
            "its shape that returns its root mean square, such as lambda shape: 0.02."
        )


def adapter_of(*types: type | str, whole: bool = False) -> Callable[[Adapter], Adapter]:
    """Decorator for this package's own adapters; classes that need not be installed go by "top package.class"."""

    def register(function: Adapter) -> Adapter:
        _REGISTRATIONS.update(dict.fromkeys(types, Registration(function, ours=True, whole=whole)))
        return function

    return register


@adapter_of(nn.ModuleList, nn.ModuleDict, nn.Sequential)
def _container(layer: nn.Module, place: Place) -> Claims:
    """All that a container holds stands where it stands."""
    return dict.fromkeys(own_modules(layer), place)  # named_children leaves out a module's second name


def registered_for(cls: type) -> list[Registration]:
    """What was registered for a class itself, by its type (which may be the user's) and by its name."""
    keys = (cls, f"{cls.__module__.partition('.')[0]}.{cls.__name__}")
    return [_REGISTRATIONS[key] for key in keys if key in _REGISTRATIONS]


def registrations(layer: nn.Module) -> list[Registration]:
    """What was registered for a layer's type and for the classes that it inherits from, nearest first."""
    return [registration for cls in type(layer).__mro__ for registration in registered_for(cls)]


def covers(claims: Iterable[str], name: str) -> bool:
    """Whether claims of these names speak of a parameter, or of a module that it is in."""
    return any(f"{name}.".startswith(f"{key}.") for key in claims)


def is_registered(layer: nn.Module) -> bool:
    """Whether there is an adapter for a layer's type, whatever it says; that of containers says nothing about them."""
    return any(registration.adapter is not _container for registration in registrations(layer))


def by_user(layer: nn.Module) -> bool:
    """Whether the adapter of a layer's type was given to :func:`register_layer`, and is none of this package's."""
    return any(not registration.ours for registration in registrations(layer)[:1])


def is_whole(layer: nn.Module) -> bool:
    """Whether a layer is a whole model that this package knows, or of a class derived from one."""
    return any(registration.whole for registration in registrations(layer))


def stands_alone(layer: nn.Module) -> bool:
    """Whether a layer can be read without a word on its place: a whole model, or described by mappings alone."""
    nearest = registrations(layer)[:1]
    by_mapping = any(registration.mapping for registration in nearest)
    return is_whole(layer) or (by_mapping and all(claim.by.mapping for claim in claims_of(layer, FIXED).values()))


def claims_of(layer: nn.Module, place: Place) -> dict[str, Claim]:
    """What is said of the names in a layer, each claim checked; nothing where the type is unknown.

    A class says only what is new in it, or to be read otherwise. Its parents are asked for what that leaves out, and what
    they say of a name that the class speaks of, or of something inside it, does not count.
    """
    claims: dict[str, Claim] = {}
    for registration in registrations(layer):
        said = registration.adapter(layer, place)
        for name, what in said.items():
            _check_claim(type(layer), name, what)
        claims |= {name: Claim(what, registration) for name, what in said.items() if not covers(claims, name)}
        if registration.ours or all(covers(claims, name) for name, _ in layer.named_parameters()):
            break
    return claims
