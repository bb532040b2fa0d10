"""Which dimensions of a model's parameters grow: measured, on the model against its base and against probes.

Where a model keeps its constructor's arguments it is built again with its width doubled; a dimension that is larger then, or
other than at base, grows. Where no arguments are kept the base alone shows it, as in mup.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from neuralop_mup.core.describe_model import ParameterInfo
from neuralop_mup.core.infshape import GROWS
from neuralop_mup.core.layers.registry import UNKNOWN, Param, registration
from neuralop_mup.core.rebuild import Base
from neuralop_mup.errors import MupError


def infer_width_dims(
    found: Mapping[str, ParameterInfo], base: Base, rule: str, model: str, trainable: bool = True
) -> dict[str, ParameterInfo]:
    """Find out which dimensions grow.

    Parameters
    ----------
    found : mapping of str to ParameterInfo
        What was read of the model.
    base : Base
    rule : str
        Name of the rule, under which a file may lack the modes.
    model : str
        Type of the model, for messages.
    trainable : bool
        Whether a frozen parameter that grows is an error.

    Returns
    -------
    dict of str to ParameterInfo
        The same as each stands in the model, with its shape at base.

    Raises
    ------
    MupError
        If base differs in more than sizes, or nothing tells what grows.
    """
    stand_ins = _stand_ins(found, base)
    stored = {name: base.shapes[at_base] for name, at_base in stand_ins.items()}
    grows: dict[str, tuple[bool, ...]] = {}
    for name, info in found.items():
        _check_fits(name, info, stored[name], base)
        # In a file each dimension that grows has a size; elsewhere it grows if it is another one.
        grows[name] = tuple(
            b is not None and (base.is_file or n != b) for n, b in zip(info.shape, stored[name], strict=True)
        )
        for shapes in base.probes.values():
            larger = (n != m for n, m in zip(info.tensor_shape, shapes.get(name, info.tensor_shape), strict=True))
            grows[name] = tuple(map(any, zip(grows[name], larger, strict=True)))
    channels = [
        own
        for name, info in found.items()
        for kind, own in zip(info.param.axes, grows[name], strict=True)
        if kind in ("in", "out")
    ]
    if channels and not any(channels) and not base.probes:
        raise MupError(
            f"Base and model have the same width, and {model} keeps no constructor arguments that say how wide it is, so "
            f"that nothing tells which dimensions grow with width: give a base of another width, let {model} keep its "
            "arguments under their own names (self.hidden_channels = hidden_channels), or give a file of base shapes that "
            "were saved from a wider model."
        )
    standing = assign_roles(found, grows, trainable)
    for name, info in standing.items():
        other = found[stand_ins[name]]
        if info.shape != other.shape:
            raise MupError(
                f"In {base.source} there are fewer layers than in the model, and the layers are not alike: {name!r} is "
                f"{info.shape}, {stand_ins[name]!r} {other.shape}. Which of them the further ones continue is not known: "
                "give a base of the same depth."
            )
        base_shape = _at_base(name, info, stored[name], base.source, rule not in ("none", "standard"))
        standing[name] = replace(info, base_shape=base_shape, lacking=stand_ins[name] != name)
    return standing


def _stand_ins(found: Mapping[str, ParameterInfo], base: Base) -> dict[str, str]:
    """What each parameter is compared with: itself, or the same in base's last layer where base has fewer Fourier layers."""
    for name, info in found.items():
        if info.shared is not None and info.shared in base.shapes:
            raise _shared(info.shared, name)
    stand_ins = {name: name if name in base.shapes else _in_last_layer(name, base.shapes) for name in found}
    lacking = [name for name, at_base in stand_ins.items() if at_base != name]
    is_deeper = any(found[name].param.role == "spectral" for name in lacking)
    tied = {name for info in found.values() for name in info.tied}  # which base, built anew, may hold one by one
    extra = [name for name in base.shapes if name not in found and name not in tied]
    if extra or not all(stand_ins.values()) or (lacking and not is_deeper):
        raise MupError(
            "Base and model have different parameters ("
            + "; ".join(
                f"only in the {where}: {', '.join(names[:3])}{', …' if len(names) > 3 else ''}"
                for where, names in (("model", lacking), ("base", extra))
                if names
            )
            + "): base may differ in width, modes and the number of Fourier layers, of which it has no more than the model, "
            "so give it the same skips, norms and shared layers."
        )
    return stand_ins


def _in_last_layer(name: str, base: Collection[str]) -> str:
    """The parameter's name with the largest smaller number of a layer that base has; empty if it has none."""
    parts = name.split(".")
    for i, part in enumerate(parts):
        for number in reversed(range(int(part) if part.isdigit() else 0)):
            other = ".".join([*parts[:i], str(number), *parts[i + 1 :]])
            if other in base:
                return other
    return ""


def _check_fits(name: str, info: ParameterInfo, stored: Sequence[int | None], base: Base) -> None:
    if base.by_mup and info.shape != info.tensor_shape:
        raise MupError(
            f"{base.source} was written by mup, which does not know that {name!r} uses only part of its modes "
            "(max_n_modes): save base shapes with neuralop_mup.save_base_shapes."
        )
    if len(stored) != len(info.shape):
        raise MupError(
            f"{base.source} gives {name!r} {len(stored)} dimensions, the model's has {len(info.shape)}: "
            "give a base of the same architecture."
        )


def _at_base(
    name: str, info: ParameterInfo, stored: Sequence[int | None], source: str, modes_matter: bool
) -> tuple[int, ...]:
    """A shape at base, where None is a dimension that is the same everywhere, and so the model's own; not if it grows."""
    sizes = tuple(n if b is None else b for n, b in zip(info.shape, stored, strict=True))
    for axis, n, b in zip(info.param.axes, info.shape, stored, strict=True):
        if b is None and axis in GROWS and not info.fixed and (modes_matter or not axis.startswith("modes")):
            raise MupError(
                f"{source} gives no base size (null) for the {axis!r} dimension of {name!r}, so how much "
                "the model grew is unknown: save base shapes with neuralop_mup.save_base_shapes(base_model, path)"
                + (", or use rule='none'." if axis.startswith("modes") else ".")
            )
        if axis not in GROWS and b not in (None, n):
            raise MupError(
                f"Parameter {name!r} is {info.shape} in the model and {sizes} in {source}: they differ on an axis of kind "
                f"{axis!r}, which neither width nor modes change: give a base of the same architecture."
            )
    return sizes


def assign_roles(
    found: Mapping[str, ParameterInfo], grows: Mapping[str, tuple[bool, ...]], trainable: bool = True
) -> dict[str, ParameterInfo]:
    """What was read with what was measured: which dimensions of each parameter grow.

    Raises
    ------
    MupError
        If two dimensions of a parameter grow that nobody describes, or a parameter that grows is shared under two names or,
        if it is to be trainable, frozen; the message names it.
    """
    growing = {name for name, own in grows.items() if any(own)}
    # A kernel grows as a whole: the modes of one factor, say, where its channels and ranks do not.
    kernels = {found[name].owner for name in growing if found[name].param.role == "spectral"}
    result = {}
    for name, info in found.items():
        in_kernel = info.param.role == "spectral" and info.owner in kernels
        is_left = info.param.init == UNKNOWN and info.frozen  # the constructor's constants, such as random frequencies
        is_fixed = is_left or (growing.isdisjoint((name, *info.init_of)) and not in_kernel)
        where = f"{name.rpartition('.')[2]!r} of module {info.owner or '(the model)'!r} ({info.layer})"
        if info.param.init == UNKNOWN and sum(grows[name]) > 1 and not is_left:
            raise _undescribed(name, found, grows, f"{where}, of shape {info.shape},")
        if info.param.init == UNKNOWN and any(grows[name]) and not is_left and ".parametrizations." in f".{name}":
            raise MupError(
                f"{name!r} is what torch computes a weight from (weight_norm, spectral_norm and their kin), and it grows, "
                "so that its μP role is unknown: leave the parametrization off layers that grow with the model, or describe "
                "the layer's parameters with nm.register_layer."
            )
        param = placed(info.param, grows[name])
        if is_fixed:  # it is left as it is
            param = replace(param, frozen=info.frozen)
        elif info.shared:
            raise _shared(name, info.shared)
        elif info.frozen and trainable and not param.frozen:
            raise MupError(
                f"Parameter {where} is frozen (requires_grad=False): call parametrize first, freeze after, or pass "
                "init=False if the weights are trained. If its constructor freezes it, describe it with nm.register_layer "
                "and nm.Param(…, frozen=True)."
            )
        result[name] = replace(info, param=param, fixed=is_fixed)
    return result


def _undescribed(
    name: str, found: Mapping[str, ParameterInfo], grows: Mapping[str, tuple[bool, ...]], where: str
) -> MupError:
    """The line to write, for all parameters of that class at once."""
    info = found[name]
    params: dict[str, str] = {}
    for other, its in found.items():
        if its.layer == info.layer and its.param.init == UNKNOWN and sum(grows[other]) > 1:
            params.setdefault(other.rpartition(".")[2], its.proposal or "nm.Param(…)")
    why = f"Two dimensions of parameter {where} grow, and nobody said what it is, so its μP role is unknown."
    if not info.proposal:
        how = "where Param has the role, the kinds of the dimensions, such as ('out', 'in'), and how it is drawn."
    elif info.acts_as_kernel:
        why += " It acts on plane waves as a Fourier kernel does, but its values are not (yet) uniform on [0, 1/(in·out))."
        how = "where init says how its constructor draws it."
    else:
        why += " Its values are uniform on [0, 1/(in·out)), as Fourier kernels often are, but tests with plane waves failed."
        how = "if it is a Fourier kernel with these dimensions."
    return MupError(f"{why} Write {registration(params, info.owner, info.layer)}, {how}")


def _shared(name: str, other: str) -> MupError:
    return MupError(f"{name!r} is shared with {other!r}, and one tensor cannot follow two rules: give each its own.")


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
