"""Reading a model: what each of its parameters is, and the numbers of it that the rules read.

The model is walked by the adapters of its layers' types (:mod:`neuralop_mup.core.registry`). A parameter that none of
them claims is an error that names it, never a silent default.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.registry import (
    FIXED,
    Alias,
    Param,
    Place,
    by_user,
    claims_of,
    covers,
    is_container,
    is_known_exactly,
    is_registered,
    own_claims,
    stands_alone,
    user_claims,
)
from neuralop_mup.core.rules import Size, default_std, factor_std
from neuralop_mup.errors import MupError, nearest

__all__ = ["Found", "Said", "active_modes", "check_grid", "classify", "read_layer", "size_of"]


@dataclass(frozen=True)
class Said:
    """A claim of the user's own: which name it was said of, in the registration of which class, and the place it gave.

    ``place`` is None for a parameter, which says for itself which of its axes grow.
    """

    name: str
    of: str
    place: Place | None = None


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
        Type of the layer whose adapter claims it.
    owner : str
        Name of that layer in the model.
    place : Place
        Where in the model that layer stands.
    init_of : tuple of str
        Qualified names of the parameters whose fans its default initialisation reads (itself, unless it is a bias or the
        factor of a kernel).
    said : Said or None
        The user's own claim that decides which of its axes grow; None where that is this package's.
    """

    param: Param
    shape: tuple[int, ...]
    tensor_shape: tuple[int, ...]
    layer: str
    owner: str
    place: Place
    init_of: tuple[str, ...]
    said: Said | None = None


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
        If a parameter is claimed by no adapter, shared under two names, frozen or without a shape, or if ``n_modes`` is
        below 1; the message names the module, its type and the parameter.
    """
    if not isinstance(model, nn.Module):
        raise MupError(f"Expected a torch.nn.Module, got {type(model).__name__}: pass the model itself.")
    _check_modes(model)
    claimed = dict(_walk(model, "", FIXED))
    modules = dict(model.named_modules(remove_duplicate=False))  # a shared module goes by each of its names
    tensors = dict(model.named_parameters(remove_duplicate=False))
    owners: dict[int, str] = {}
    found = {}
    for name, tensor in tensors.items():
        owner, _, leaf = name.rpartition(".")
        where = f"{leaf!r} of module {owner or '(the model)'!r} ({type(modules[owner]).__name__})"
        if name not in claimed:
            raise MupError(
                f"No adapter claims parameter {where}, so its μP role is unknown: {_how_to_claim(model, name, claimed)}"
            )
        claim = claimed[name]
        if isinstance(claim.what, Alias):
            of = claim.prefix + claim.what.of
            if tensors.get(of) is not tensor:
                raise MupError(
                    f"Parameter {where} and {of!r} should be one tensor under two names, but are two: tie them again."
                )
            continue
        assert isinstance(claim.what, Param)  # a Place is walked into
        _check_tensor(tensor, where, owners.get(id(tensor)), trainable and not claim.what.frozen)
        owners[id(tensor)] = name
        found[name] = _describe(name, claim, claim.what, tensor, where)
    for name, f in found.items():
        if missing := [other for other in f.init_of if other not in found]:
            raise MupError(
                f"The adapter of {f.layer} says that the init of {name!r} follows {missing[0]!r}, which the model does "
                "not have: give init_of the name of a parameter of the same layer."
            )
    return found


def read_layer(model: nn.Module, owner: str, place: Place) -> dict[str, Found]:
    """What the parameters of one layer are now: its active modes may have changed since the model was classified.

    Parameters
    ----------
    model : torch.nn.Module
        The bare model.
    owner, place : str, Place
        Name and place of the layer, as :class:`Found` has them.
    """
    prefix = f"{owner}." if owner else ""
    tensors = dict(model.get_submodule(owner).named_parameters(prefix=owner))
    claims = _claims_of(model.get_submodule(owner), prefix, place)
    return {
        name: _describe(name, claim, claim.what, tensors[name], name)
        for name, claim in claims
        if isinstance(claim.what, Param) and name in tensors
    }


def _describe(name: str, claim: _Claim, param: Param, tensor: torch.Tensor, where: str) -> Found:
    shape = param.shape or tuple(tensor.shape)
    if len(param.axes) != len(shape):
        raise MupError(
            f"Parameter {where} has shape {shape}, but its adapter describes {len(param.axes)} axes {param.axes}: "
            "this version of the layer is unknown here; describe it with neuralop_mup.register_layer."
        )
    siblings = (param.init_of,) if isinstance(param.init_of, str) else param.init_of or ()
    return Found(
        param,
        shape,
        tuple(tensor.shape),
        claim.layer,
        claim.prefix.removesuffix("."),
        claim.place,
        tuple(claim.prefix + sibling for sibling in siblings) or (name,),
        claim.said,
    )


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


@dataclass(frozen=True)
class _Claim:
    """What an adapter says of one name, and of which layer it was asked."""

    what: Param | Place | Alias
    prefix: str
    layer: str
    place: Place
    said: Said | None = None


def _walk(module: nn.Module, prefix: str, place: Place, said: Said | None = None) -> Iterator[tuple[str, _Claim]]:
    """Yield (qualified name, claim) for every parameter, or second name of one, that adapters claim."""
    if not is_registered(module) and not is_container(module):
        yield from _walk_unplaced(module, prefix)
    if stands_alone(module):
        said = None  # its place decides nothing
    users, stated, cls = user_claims(module), user_claims(module, stated=True), type(module).__name__
    for name, claim in _claims_of(module, prefix, place):
        key = name.removeprefix(prefix)
        if not isinstance(claim.what, Place):
            yield name, replace(claim, said=Said(name, cls) if key in stated else said)
        elif (child := _submodule(module, key)) is not None:
            where = replace(claim.what, beside=True) if place.beside else claim.what
            yield from _walk(child, f"{name}.", where, Said(name, cls, claim.what) if key in users else said)


def _walk_unplaced(module: nn.Module, prefix: str) -> Iterator[tuple[str, _Claim]]:
    """The same inside a class that nobody registered: nothing there has a place, and a whole model needs none."""
    for name, child in module._modules.items():
        if child is None:
            continue
        if stands_alone(child):
            yield from _walk(child, f"{prefix}{name}.", FIXED)
        elif not is_registered(child):
            yield from _walk_unplaced(child, f"{prefix}{name}.")


def _claims_of(module: nn.Module, prefix: str, place: Place) -> Iterator[tuple[str, _Claim]]:
    """What the adapter of one module's type claims, children included, by qualified name."""
    for name, claim in claims_of(module, place).items():
        yield prefix + name, _Claim(claim, prefix, type(module).__name__, place)


def _how_to_claim(model: nn.Module, name: str, claimed: Collection[str]) -> str:
    """What to do about a parameter that no adapter claims: the class to describe, and the line for it."""
    path, module, rest = "", model, name
    while is_registered(module) or is_container(module):
        claims = claims_of(module, FIXED)
        asked = [key for key, claim in claims.items() if isinstance(claim, Place) and rest.startswith(f"{key}.")]
        if not asked:
            return _left_out(module, rest)
        key = max(asked, key=len)
        path, module, rest = f"{path}.{key}" if path else key, module.get_submodule(key), rest.removeprefix(f"{key}.")
    path, module = _narrowed(path, module, claimed)
    where = repr(path) if path else "the model"
    return f"nobody registered {type(module).__name__} ({where}). {_registration(path, module, claimed)}"


def _left_out(module: nn.Module, rest: str) -> str:
    """What to do about a parameter of a registered class whose adapter says nothing of it."""
    cls, (first, _, inside) = type(module).__name__, rest.partition(".")
    for key in own_claims(module) if by_user(module) else ():
        if not hasattr(module, key.partition(".")[0]):
            known = [*dict(module.named_children()), *dict(module.named_parameters(recurse=False))]
            return (
                f"the registration of {cls} names {key!r}, and {cls} has no such child or parameter: {nearest(key, known)}"
            )
    if not is_known_exactly(module) or by_user(module):
        left = [name for name, _ in module.named_parameters() if not covers(claims_of(module, FIXED), name)]
        own = [name for name in left if "." not in name]
        held = list(dict.fromkeys(name.partition(".")[0] for name in left if "." in name))
        entries = ", ".join([*(f"{key!r}: nm.Param(…)" for key in own), *(f"{key!r}: nm.Place(?, ?)" for key in held)])
        mean = "; ".join([*([_PLACE] if held else []), *([_PARAM] if own else [])])
        unknown = [key for key in held if not (is_registered(child := getattr(module, key)) or is_container(child))]
        more = "".join(f" {_registration(key, getattr(module, key), ())}" for key in unknown[:1])
        if is_known_exactly(module):
            return f"the adapter of {cls} says nothing of {first!r}. Add {entries} to its registration, where {mean}.{more}"
        line = f"nm.register_layer({cls}, {{{entries}}})"
        return f"{cls} has {first!r} besides what it inherits, which is known. Write {line}, where {mean}.{more}"
    if not inside:
        return (
            f"the adapter of {cls} does not describe it in this configuration. Describe the class, or one derived from it, "
            "with neuralop_mup.register_layer."
        )
    child = getattr(module, first)
    line = "" if is_registered(child) or is_container(child) else f" {_registration(first, child, ())}"
    return (
        f"the adapter of {cls} says nothing of {first!r}. Derive a class from {cls} and describe it with "
        f"neuralop_mup.register_layer, {first!r} included (docs/third_party.md).{line}"
    )


def _registration(path: str, module: nn.Module, claimed: Collection[str]) -> str:
    """The line that registers a class, for the user to complete."""
    inside = f"{path}." if path else ""
    own = [key for key, _ in module.named_parameters(recurse=False)]
    held = {key: child for key, child in module.named_children() if any(True for _ in child.parameters())}
    parts = [f"{key!r}: nm.Param(…)" for key in own]
    for key, child in held.items():
        alone = all(f"{inside}{key}.{inner}" in claimed for inner, _ in child.named_parameters())
        parts.append(f"{key!r}: nm.Place({'False, False' if alone else '?, ?'})")
    more = ", …" if len(parts) > _SHOWN else ""
    kinds = [*([_PLACE] if held else []), *([_PARAM] if own else [])]
    line = f"nm.register_layer({type(module).__name__}, {{{', '.join(parts[:_SHOWN])}{more}}})"
    return f"Write {line}, where {'; '.join(kinds)}."


_SHOWN = 8  # children in a message
_PLACE = "Place(channels in, channels out) is True where they grow with width, False where they are fixed"
_PARAM = "Param says what a parameter of its own is"


def _narrowed(path: str, module: nn.Module, claimed: Collection[str]) -> tuple[str, nn.Module]:
    """A class that nobody registered, or the one in it that alone needs to be: what only holds that one does not."""
    found = path, module
    while True:
        prefix = f"{path}." if path else ""
        if any(prefix + name not in claimed for name, _ in module.named_parameters(recurse=False)):
            return found
        children = [
            (name, child)
            for name, child in module.named_children()
            if any(f"{prefix}{name}.{inner}" not in claimed for inner, _ in child.named_parameters())
        ]
        if len({type(child) for _, child in children}) != 1 or is_registered(children[0][1]):
            return found
        path, module = prefix + children[0][0], children[0][1]
        if not is_container(module):
            found = path, module


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
