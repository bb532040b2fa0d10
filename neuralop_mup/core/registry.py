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

from torch import nn

from neuralop_mup.core.infshape import AXES
from neuralop_mup.core.rules import ROLES
from neuralop_mup.errors import MupError

__all__ = ["FIXED", "HIDDEN", "Adapter", "Alias", "Claims", "Param", "Place", "adapter_of", "claims_of", "register_layer"]


@dataclass(frozen=True)
class Place:
    """Where a layer stands in the model.

    Attributes
    ----------
    grows_in, grows_out : bool
        Whether the channels that enter and leave it grow with width (True) or are fixed (False).
    beside : bool
        Whether it stands beside another layer, as the keys of an attention do beside its values: the Fourier layers in it
        then add nothing to the model's depth.
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
class Param:
    """What one parameter is.

    Attributes
    ----------
    role : {"input", "hidden", "readout", "vector", "spectral"}
        Which row of the rules' table applies.
    axes : tuple of str
        Kind of each dimension: ``in``, ``out`` (channels that grow with width), ``in_fixed``, ``out_fixed``, ``fixed``;
        ``modes``, ``modes_half`` (a real transform's last axis, which stores n_modes // 2 + 1), ``modes_single`` (one
        sign alone, K entries); ``rank_in``, ``rank_out`` (a rank index that a factor sums over, or produces); ``pair``
        (real and imaginary part).
    init : {"fan_in", "mean_fan", "fan_out", "positive", "constant"} or callable
        How the default initialisation depends on the layer's fans (:func:`neuralop_mup.core.rules.default_std`), or a
        function of the parameter's logical shape that returns its root mean square. ``constant`` (the default) is for
        vectors only: a matrix has to say how it is drawn.
    init_of : str or tuple of str, optional
        The sibling parameter whose fans the default initialisation reads (a bias is drawn by its weight's fan-in); all
        factors together where the sibling is a factorized kernel. Itself if not given.
    shape : tuple of int, optional
        Logical shape where it differs from the tensor's: a kernel's active modes under ``max_n_modes``.
    rank_power : float, optional
        For a factor of the kernel ``init_of``: see :func:`neuralop_mup.core.rules.factor_std`.
    frozen : bool
        Whether the layer's own constructor freezes it. Any other frozen parameter is an error.
    """

    role: str
    axes: tuple[str, ...]
    init: str | Callable[[tuple[int, ...]], float] = "constant"
    init_of: str | tuple[str, ...] | None = None
    shape: tuple[int, ...] | None = None
    rank_power: float | None = None
    frozen: bool = False


@dataclass(frozen=True)
class Alias:
    """A second name for the tensor that the layer's parameter ``of`` holds: counted once, under that name."""

    of: str


Claims = Mapping[str, "Param | Place | Alias"]
Adapter = Callable[[Any, Place], Claims]


@dataclass(frozen=True)
class _Known:
    """What the registry holds of a type: its adapter, whether that is ours, and whether it is a model to be put anywhere."""

    adapter: Adapter
    ours: bool = False
    whole: bool = False


@dataclass(frozen=True)
class _Stated:
    """The adapter that a mapping makes: it says the same in every place."""

    claims: Claims

    def __call__(self, layer: nn.Module, place: Place) -> Claims:
        return self.claims


# By type; by name where the package is not imported here: "physicsnemo.FNO" is class FNO of top package physicsnemo.
_ADAPTERS: dict[type | str, _Known] = {}


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
    """
    if not (isinstance(layer_type, type) and issubclass(layer_type, nn.Module)):
        raise MupError(f"register_layer takes a torch.nn.Module class, got {layer_type!r}: pass the class, not an instance.")
    if callable(roles):
        _ADAPTERS[layer_type] = _Known(roles)
        return
    claims = dict(roles)
    for name, claim in claims.items():
        _check_claim(layer_type, name, claim)
    _ADAPTERS[layer_type] = _Known(_Stated(claims))


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


def adapter_of(*types: type, whole: bool = False) -> Callable[[Adapter], Adapter]:
    """Decorator for this package's own adapters; ``whole`` for models, whose inputs and outputs have fixed channels."""

    def register(function: Adapter) -> Adapter:
        _ADAPTERS.update(dict.fromkeys(types, _Known(function, ours=True, whole=whole)))
        return function

    return register


def adapter_of_name(*names: str, whole: bool = False) -> Callable[[Adapter], Adapter]:
    """The same for classes of a package that need not be installed, each as "top package.class"."""

    def register(function: Adapter) -> Adapter:
        _ADAPTERS.update(dict.fromkeys(names, _Known(function, ours=True, whole=whole)))
        return function

    return register


def name_of(layer_type: type) -> str:
    """What :func:`adapter_of_name` calls a class."""
    return f"{layer_type.__module__.partition('.')[0]}.{layer_type.__name__}"


def _registered(layer: nn.Module) -> list[_Known]:
    """What is registered for a layer's type and for the classes that it inherits from, nearest first."""
    keys = (key for cls in type(layer).__mro__ for key in (cls, name_of(cls)))
    return [_ADAPTERS[key] for key in keys if key in _ADAPTERS]


def _used(layer: nn.Module) -> list[_Known]:
    """The adapters that speak of a layer: its own, and while that leaves something out those that it inherits."""
    used: list[_Known] = []
    said: set[str] = set()
    for known in _registered(layer):
        used.append(known)
        if known.ours:  # which describe their layers whole
            break
        said |= set(known.adapter(layer, FIXED))
        if all(covers(said, name) for name, _ in layer.named_parameters()):
            break
    return used


def covers(claims: Iterable[str], name: str) -> bool:
    """Whether claims of these names speak of a parameter, or of a module that it is in."""
    return any(f"{name}.".startswith(f"{key}.") for key in claims)


def is_container(layer: nn.Module) -> bool:
    """Whether a module only holds others."""
    return isinstance(layer, (nn.ModuleList, nn.ModuleDict, nn.Sequential))


def is_registered(layer: nn.Module) -> bool:
    """Whether there is an adapter for a layer's type, whatever it says."""
    return bool(_registered(layer))


def by_user(layer: nn.Module) -> bool:
    """Whether the adapter of a layer's type was given to :func:`register_layer`, and is none of this package's."""
    return any(not known.ours for known in _registered(layer)[:1])


def by_mapping(layer: nn.Module) -> bool:
    """Whether a layer is described by mappings alone, which are the same in every place."""
    used = _used(layer)
    return bool(used) and all(isinstance(known.adapter, _Stated) for known in used)


def own_claims(layer: nn.Module) -> Claims:
    """What was registered for a layer's type itself or, where nothing was, for the nearest class that it inherits from."""
    known = _registered(layer)
    return known[0].adapter(layer, FIXED) if known else {}


def user_claims(layer: nn.Module, *, stated: bool = False) -> set[str]:
    """Names that adapters given to :func:`register_layer` claim; with ``stated`` those of mappings alone."""
    asked = [known for known in _used(layer) if isinstance(known.adapter, _Stated) or not (known.ours or stated)]
    return {name for known in asked for name in known.adapter(layer, FIXED)}


def is_known_exactly(layer: nn.Module) -> bool:
    """Whether a layer's own type, not only a class that it inherits from, has an adapter."""
    return type(layer) in _ADAPTERS or name_of(type(layer)) in _ADAPTERS


def is_whole(layer: nn.Module) -> bool:
    """Whether a layer is a whole model that this package knows, or of a class derived from one."""
    return any(known.whole for known in _registered(layer))


def stands_alone(layer: nn.Module) -> bool:
    """Whether a layer can be read without a word on its place."""
    return is_whole(layer) or by_mapping(layer)


def claims_of(layer: nn.Module, place: Place) -> Claims:
    """What the adapters of a layer claim, each claim checked; nothing where the type is unknown.

    A class says only what is new in it: the rest is its parent's, and what both say is as the class says.
    """
    if is_container(layer):
        return dict.fromkeys(layer._modules, place)  # named_children leaves out a module's second name
    claims: dict[str, Param | Place | Alias] = {}
    for known in reversed(_used(layer)):
        claims |= known.adapter(layer, place)
    for name, claim in claims.items():
        _check_claim(type(layer), name, claim)
    return claims
