"""Which dimensions of a model's parameters grow: measured, on the model against its base and against probes.

Where a model keeps its constructor's arguments it is built again with its width doubled; a dimension that is larger then, or
other than at base, grows. Where no arguments are kept the base alone shows it, as in mup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from neuralop_mup.core.base import Base
from neuralop_mup.core.depth import Layers, match_layers
from neuralop_mup.core.infshape import GROWS
from neuralop_mup.core.layers import UNKNOWN, Param
from neuralop_mup.core.reading import ParameterInfo, shared
from neuralop_mup.errors import MupError

Shapes = dict[str, tuple[int, ...]]
Growth = dict[str, tuple[bool, ...]]


@dataclass(frozen=True)
class Measured:
    """What is known of a model beside its base.

    Attributes
    ----------
    found : dict of str to ParameterInfo
        The model's parameters, each as it stands there.
    at_base : dict of str to tuple of int
        Their logical shapes at base.
    layers : dict of str to Layers
        What each of them is compared with, where base has fewer layers.
    how : str
        What was measured against what, in words.
    """

    found: dict[str, ParameterInfo]
    at_base: Shapes
    layers: dict[str, Layers]
    how: str


def measure(
    found: Mapping[str, ParameterInfo],
    base: Base,
    probes: Mapping[str, Mapping[str, tuple[int, ...]]],
    rule: str,
    model: str,
) -> Measured:
    """Find out which dimensions grow.

    Parameters
    ----------
    found : mapping of str to ParameterInfo
        What was read of the model.
    base : Base
    probes : mapping of str to mapping
        By what was made larger, such as "FNO of twice the width", the shapes of all its parameters then.
    rule : str
        Name of the rule, under which a file may lack the modes.
    model : str
        Type of the model, for messages.

    Raises
    ------
    MupError
        If base differs in more than sizes, or nothing tells what grows.
    """
    layers = _matched(found, base)
    stored = {name: base.shapes[layers[name].at_base(name)] for name in found}
    for name, info in found.items():
        _check_alike(name, info, base, layers[name].at_base(name))
    # In a file each dimension that grows has a size; elsewhere it grows if it is another one.
    grows: Growth = {
        name: tuple(b is not None if not base.found else n != b for n, b in zip(info.shape, stored[name], strict=True))
        for name, info in found.items()
    }
    for shapes in probes.values():
        for name, shape in ((name, shape) for name, shape in shapes.items() if name in found):
            larger = (n != m for n, m in zip(found[name].tensor_shape, shape, strict=True))
            grows[name] = tuple(map(any, zip(grows[name], larger, strict=True)))
    if not probes:
        _check_something_grows(found, grows, model)
    standing = place(found, grows)
    modes_matter = rule not in ("none", "standard")
    at_base = {name: _whole(name, info, stored[name], base.source, modes_matter) for name, info in standing.items()}
    _check_sizes(standing, at_base, layers, base.source)
    against = "".join(f", and against {what}, on the meta device" for what in probes)
    return Measured(standing, at_base, layers, f"base: {base.source}; what grows was measured against it{against}")


def _matched(found: Mapping[str, ParameterInfo], base: Base) -> dict[str, Layers]:
    """What each parameter is compared with, where base has the same parameters but for its number of layers."""
    for name, info in found.items():
        if info.shared is not None and info.shared in base.shapes:
            raise shared(info.shared, name)
    kernels = [name for name, info in found.items() if info.param.role == "spectral"]
    layers = match_layers(found.keys(), base.shapes.keys(), kernels)
    if layers is None:
        missing, extra = sorted(found.keys() - base.shapes.keys()), sorted(base.shapes.keys() - found.keys())
        raise MupError(
            "Base and model have different parameters ("
            + "; ".join(
                f"only in the {where}: {', '.join(names[:3])}{', …' if len(names) > 3 else ''}"
                for where, names in (("model", missing), ("base", extra))
                if names
            )
            + "): base may differ in width, modes and the number of Fourier layers, so give it the same skips and norms."
        )
    return layers


def _check_alike(name: str, info: ParameterInfo, base: Base, at_base: str) -> None:
    """A parameter is at base of the same kind, and of as many dimensions."""
    if not base.knows_active_modes and info.shape != info.tensor_shape:
        raise MupError(
            f"{base.source} was written by mup, which does not know that {name!r} uses only part of its modes "
            "(max_n_modes): save base shapes with neuralop_mup.save_base_shapes."
        )
    if len(base.shapes[at_base]) != len(info.shape):
        raise MupError(
            f"{base.source} gives {name!r} {len(base.shapes[at_base])} dimensions, the model's has {len(info.shape)}: "
            "give a base of the same architecture."
        )
    own = base.found.get(at_base, info)
    if (own.param.axes, own.param.role) != (info.param.axes, info.param.role):
        raise MupError(
            f"Parameter {name!r} is {info.param.role} {info.param.axes} in the model but {own.param.role} "
            f"{own.param.axes} at base: give a base of the same architecture."
        )


def _check_something_grows(found: Mapping[str, ParameterInfo], grows: Growth, model: str) -> None:
    channels = [
        own
        for name, info in found.items()
        for kind, own in zip(info.param.axes, grows[name], strict=True)
        if kind in ("in", "out")
    ]
    if channels and not any(channels):
        raise MupError(
            f"Base and model have the same width, and {model} keeps no constructor arguments that say how wide it is, so "
            f"that nothing tells which dimensions grow with width: give a base of another width, let {model} keep its "
            "arguments under their own names (self.hidden_channels = hidden_channels), or give a file of base shapes that "
            "were saved from a wider model."
        )


def _whole(name: str, info: ParameterInfo, stored: Iterable[int | None], source: str, modes_matter: bool) -> tuple[int, ...]:
    """A shape at base, where None is a dimension that is the same everywhere, and so the model's own; not if it grows."""
    sizes = []
    for axis, n, b in zip(info.param.axes, info.shape, stored, strict=True):
        if b is None and axis in GROWS and (modes_matter or not axis.startswith("modes")):
            raise MupError(
                f"{source} gives no base size (null) for the {axis!r} dimension of {name!r}, so how much "
                "the model grew is unknown: save base shapes with neuralop_mup.save_base_shapes(base_model, path)"
                + (", or use rule='none'." if axis.startswith("modes") else ".")
            )
        sizes.append(n if b is None else b)
    return tuple(sizes)


def _check_sizes(found: Mapping[str, ParameterInfo], shapes: Shapes, layers: Mapping[str, Layers], source: str) -> None:
    for name, info in found.items():
        other = layers[name].last
        if (info.shape, shapes[name]) != (found[other].shape, shapes[other]):
            raise MupError(
                f"In {source} there are fewer layers than in the model, and the layers are not alike: {name!r} is "
                f"{info.shape} (at base {shapes[name]}), {other!r} {found[other].shape} ({shapes[other]}). Which of "
                "them the further ones continue is not known: give a base of the same depth."
            )
        for axis, n, b in zip(info.param.axes, info.shape, shapes[name], strict=True):
            if axis not in GROWS and n != b:
                raise MupError(
                    f"Parameter {name!r} is {info.shape} in the model and {shapes[name]} in {source}: they differ on an "
                    f"axis of kind {axis!r}, which neither width nor modes change: give a base of the same architecture."
                )


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


def placed(param: Param, grows: tuple[bool, ...]) -> Param:
    """A description as it is where the layer stands: of its channels those that do not grow are fixed ones.

    A matrix that reads and writes channels which grow is hidden, one that reads them alone the readout, any other an input.
    A parameter that nobody described is a vector in the dimension that grows.
    """
    if param.init == UNKNOWN:
        return replace(param, axes=tuple("out" if own else "fixed" for own in grows))
    axes = tuple(
        f"{kind}_fixed" if kind in ("in", "out") and not own else kind for kind, own in zip(param.axes, grows, strict=True)
    )
    if param.role not in ("input", "hidden", "readout"):
        return replace(param, axes=axes)
    role = ("hidden" if "out" in axes else "readout") if "in" in axes else "input"
    return replace(param, axes=axes, role=role)


def does_not_grow(param: Param) -> bool:
    """Whether nothing of a placed parameter grows, with width or modes: it is left as it is."""
    return GROWS.isdisjoint(param.axes)
