"""Reading a model: what each of its parameters is, and the numbers of it that the rules read.

Every module is described by its type (:mod:`neuralop_mup.core.layers`), as it stands in the middle of a model. What grows is
measured afterwards (:mod:`neuralop_mup.core.growth`); :func:`place` puts both together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import nn

import neuralop_mup.core.adapters  # noqa: F401  describes what this package knows
from neuralop_mup.core.layers import UNKNOWN, Alias, Describe, Param, describe, does_not_grow, is_users, placed
from neuralop_mup.core.modes import check_modes
from neuralop_mup.core.rules import Size, default_std, factor_std
from neuralop_mup.errors import MupError, nearest

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class ParameterInfo:
    """A parameter that was read.

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
    shared : str or None
        A second name of the tensor, which no description gives.
    """

    param: Param
    shape: tuple[int, ...]
    tensor_shape: tuple[int, ...]
    layer: str
    owner: str
    init_of: tuple[str, ...]
    frozen: bool = False
    shared: str | None = None


def read(model: nn.Module) -> dict[str, ParameterInfo]:
    """Read what every parameter of ``model`` is, as if all channels grew.

    Parameters
    ----------
    model : torch.nn.Module
        The model, on any device (also ``meta``).

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
    check_modes(model)
    described = dict(_described(model))
    tensors = dict(model.named_parameters(remove_duplicate=False))
    found: dict[str, ParameterInfo] = {}
    first_name: dict[int, str] = {}
    for name, tensor in tensors.items():
        owner, layer, what = described.get(name) or (name.rpartition(".")[0], "", None)
        if isinstance(what, Alias):
            _check_alias(name, f"{owner}.{what.of}".removeprefix("."), tensors)
        elif (first := first_name.setdefault(id(tensor), name)) != name:
            found[first] = replace(found[first], shared=name)
        else:
            layer = layer or type(model.get_submodule(owner)).__name__
            found[name] = _info(name, what or Param("vector", ("fixed",) * tensor.ndim, UNKNOWN), tensor, layer, owner)
    for name, info in found.items():
        if missing := [other for other in info.init_of if other not in found]:
            raise MupError(
                f"The description of {info.layer} says that the init of {name!r} follows {missing[0]!r}, which the model "
                "does not have: give init_of the name of a parameter of the same layer."
            )
    return found


def read_layer(model: nn.Module, owner: str) -> dict[str, ParameterInfo]:
    """What the parameters of one layer are now: its active modes may have changed since the model was read."""
    layer = model.get_submodule(owner)
    tensors = dict(layer.named_parameters())
    prefix, cls = f"{owner}." if owner else "", type(layer).__name__
    return {
        prefix + name: _info(prefix + name, what, tensors[name], cls, owner)
        for name, (what, _) in describe(layer).items()
        if isinstance(what, Param) and name in tensors
    }


def place(
    found: Mapping[str, ParameterInfo], grows: Mapping[str, tuple[bool, ...]], trainable: bool = True
) -> dict[str, ParameterInfo]:
    """What was read with what was measured: which dimensions of each parameter grow.

    Raises
    ------
    MupError
        If two dimensions of a parameter grow that nobody describes, or a parameter that grows is shared under two names or,
        if it is to be trainable, frozen; the message names it.
    """
    result = {}
    for name, info in found.items():
        where = f"{name.rpartition('.')[2]!r} of module {info.owner or '(the model)'!r} ({info.layer})"
        if info.param.init == UNKNOWN and sum(grows[name]) > 1:
            raise MupError(
                f"Two dimensions of parameter {where}, of shape {info.shape}, grow, and nobody said what it is, so its μP "
                f"role is unknown. Write nm.register_layer({info.layer}, {{{name.rpartition('.')[2]!r}: nm.Param(…)}}), "
                "where Param has the role, the kinds of the dimensions, such as ('out', 'in'), and how it is drawn."
            )
        param = placed(info.param, grows[name])
        if does_not_grow(param):
            param = replace(param, frozen=info.frozen)
        elif info.shared:
            raise shared(name, info.shared)
        elif info.frozen and trainable and not param.frozen:
            raise MupError(f"Parameter {where} is frozen (requires_grad=False): call parametrize first, freeze after.")
        result[name] = replace(info, param=param)
    return result


def shared(name: str, other: str) -> MupError:
    """What is said of a tensor with two names."""
    return MupError(f"{name!r} is shared with {other!r}, and one tensor cannot follow two rules: give each its own.")


def _described(model: nn.Module) -> Iterator[tuple[str, tuple[str, str, Param | Alias]]]:
    """For each name that a layer describes the layer's name and type, and what it says; a layer comes after its children."""
    for owner, module in reversed(list(model.named_modules(remove_duplicate=False))):
        prefix = f"{owner}." if owner else ""
        for name, (what, function) in describe(module).items():
            if isinstance(what, (Param, Alias)):
                _check_name(module, name, function)
                yield prefix + name, (owner, type(module).__name__, what)


def _check_name(module: nn.Module, name: str, function: Describe) -> None:
    """A registration of the user's may name what this layer lacks (a bias that is None), but nothing that no layer has."""
    if is_users(function) and not hasattr(module, name.partition(".")[0]):
        known = [own for own, _ in module.named_parameters()]
        cls = type(module).__name__
        raise MupError(f"The registration of {cls} names {name!r}, and {cls} has no such parameter: {nearest(name, known)}")


def _check_alias(name: str, of: str, tensors: Mapping[str, torch.Tensor]) -> None:
    if tensors.get(of) is not tensors[name]:
        raise MupError(f"Parameter {name!r} and {of!r} should be one tensor under two names, but are two: tie them again.")


def _info(name: str, param: Param, tensor: torch.Tensor, layer: str, owner: str) -> ParameterInfo:
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
    return ParameterInfo(param, shape, tuple(tensor.shape), layer, owner, of, not tensor.requires_grad)


def size_of(name: str, found: Mapping[str, ParameterInfo], shapes: Mapping[str, tuple[int, ...]]) -> Size:
    """The numbers of parameter ``name`` that the rules read, given every parameter's logical shape.

    Parameters
    ----------
    name : str
        Qualified name of the parameter.
    found : mapping
        What :func:`place` returned.
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
        std = float(param.init(shapes[name]))
    elif param.init == "fan_in":  # torch counts the stencil of a convolution
        std = default_std("fan_in", prod(n for kind, n in whole if kind not in ("out", "out_fixed")), kernel_out)
    else:
        std = default_std("constant" if param.init == UNKNOWN else param.init, kernel_in, kernel_out)
    if param.rank_power is not None:
        std = factor_std(std, _size(whole, "rank_in"), len(parts), param.rank_power)
    if "pair" in param.axes and not callable(param.init):
        std /= 2**0.5  # the root mean square of a complex number's parts
    # A kernel's mode factor κ is carried once: by the kernel, or by the factor that makes its output channels.
    if param.role != "spectral" or (
        param.rank_power is not None and not any(kind in ("out", "out_fixed") for kind, _ in own)
    ):
        return Size(fan_in, fan_out, std)
    modes = [(kind, n) for kind, n in whole if kind.startswith("modes")]
    separable = not any(kind in ("in", "in_fixed") for kind, _ in whole)
    return Size(
        fan_in,
        fan_out,
        std,
        modes=tuple(_PER_SIGN[kind](n) for kind, n in modes),
        blocks=prod(n for _, n in modes),
        block=(1, 1) if separable else (kernel_in, kernel_out),
        one_sign=param.init == "positive",
    )


# Modes per sign, K, of an axis that stores n entries.
_PER_SIGN = {"modes": lambda n: n // 2, "modes_half": lambda n: n - 1, "modes_single": lambda n: n}


def _size(axes: list[tuple[str, int]], *kinds: str) -> int:
    return prod(n for kind, n in axes if kind in kinds)
