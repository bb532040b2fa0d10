"""Determine which dimensions of a model's parameters grow by comparing the model with its base and with probes.

If a model stores its constructor arguments, it is compared with a probe of twice its width and with the base. A dimension
grows if its size differs in one of them. Otherwise, the model is only compared with the base, as in mup.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from neuralop_mup.core.base import Base
from neuralop_mup.core.build_models import changed_dims
from neuralop_mup.core.describe_model import ParameterInfo
from neuralop_mup.core.infshape import GROWS
from neuralop_mup.core.layers.registry import UNKNOWN, Param, registration
from neuralop_mup.errors import MupError, listed


def infer_width_dims(
    found: Mapping[str, ParameterInfo], base: Base, rule: str, model: str, trainable: bool = True
) -> dict[str, ParameterInfo]:
    """Infer which dimensions grow, and return the parameters with their roles and base shapes.

    Parameters
    ----------
    found : mapping of str to ParameterInfo
        The model's parameters.
    base : Base
        Shapes of the base and of probes.
    rule : str
        Name of the rule. Under ``none`` and ``standard``, a file may omit the modes.
    model : str
        Type of the model, for messages.
    trainable : bool
        Whether to raise an error if a parameter that grows is frozen.

    Returns
    -------
    dict of str to ParameterInfo
        ``found`` with the roles and axes in this model and the shapes in the base.

    Raises
    ------
    MupError
        If the base differs in anything other than sizes, or if the dimensions that grow are unknown.
    """
    stand_ins = _stand_ins(found, base)
    stored = {name: base.shapes[at_base] for name, at_base in stand_ins.items()}
    grows: dict[str, tuple[bool, ...]] = {}
    stored_sizes = {name: info.tensor_shape for name, info in found.items()}
    probed = [changed_dims(stored_sizes, shapes) for shapes in base.probes.values()]
    for name, info in found.items():
        _check_fits(name, info, stored[name], base)
        # In a file, every dimension with a size grows. Otherwise, a dimension grows if its size differs.
        grows[name] = tuple(
            (b is not None and (base.is_file or n != b)) or any(a in changed.get(name, ()) for changed in probed)
            for a, (n, b) in enumerate(zip(info.shape, stored[name], strict=True))
        )
    channels = [
        own
        for name, info in found.items()
        for kind, own in zip(info.param.axes, grows[name], strict=True)
        if kind in ("in", "out")
    ]
    if channels and not any(channels) and not base.probes:
        raise MupError(
            f"Base and model have the same width, and {model} does not store the constructor argument for it, so the "
            "dimensions that grow are unknown. Pass a base with a different width or a base-shape file of a wider model, "
            f"or let {model} store its arguments under their own names (self.hidden_channels = hidden_channels)."
        )
    result = assign_roles(found, grows, trainable)
    for name, info in result.items():
        other = found[stand_ins[name]]
        if info.shape != other.shape:
            raise MupError(
                f"The base ({base.source}) has fewer layers than the model, but the model's layers are not equal: {name!r} "
                f"has shape {info.shape}, and {stand_ins[name]!r} has shape {other.shape}. The base shapes of the "
                "additional layers are therefore unknown. Pass a base of the same depth."
            )
        base_shape = _at_base(name, info, stored[name], base.source, rule not in ("none", "standard"))
        result[name] = replace(info, base_shape=base_shape, lacking=stand_ins[name] != name)
    return result


def _stand_ins(found: Mapping[str, ParameterInfo], base: Base) -> dict[str, str]:
    """Return each parameter's name in the base; if the base has fewer layers, its last layer replaces the others."""
    stand_ins = {name: name if name in base.shapes else _in_last_layer(name, base.shapes) for name in found}
    lacking = [name for name, at_base in stand_ins.items() if at_base != name]
    is_deeper = any(found[name].param.role == "spectral" for name in lacking)
    tied = {name for info in found.values() for name in info.tied}  # these may not be tied in the base
    extra = [name for name in base.shapes if name not in found and name not in tied]
    if extra or not all(stand_ins.values()) or (lacking and not is_deeper):
        raise MupError(
            f"Base and model have different parameters (only in the model: {listed(lacking) or 'none'}; only in the base: "
            f"{listed(extra) or 'none'}). The base may only differ in width, modes and depth, and must not have more "
            "Fourier layers than the model. Pass a base with the same skips, norms and shared layers."
        )
    return stand_ins


def _in_last_layer(name: str, base: Collection[str]) -> str:
    """Return the parameter's name in the last earlier layer that exists in the base, or an empty string."""
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
            f"{base.source} was written by mup and contains all modes of {name!r}, but the model only uses some of them "
            "(max_n_modes). Save base shapes with neuralop_mup.save_base_shapes(base_model, path)."
        )
    if len(stored) != len(info.shape):
        raise MupError(
            f"{name!r} has {len(stored)} dimensions in {base.source} but {len(info.shape)} in the model. Pass a base with "
            "the same architecture."
        )


def _at_base(
    name: str, info: ParameterInfo, stored: Sequence[int | None], source: str, modes_matter: bool
) -> tuple[int, ...]:
    """Return a base shape with the model's size in place of None, which marks fixed dimensions.

    Raises
    ------
    MupError
        If a dimension that grows is None, or if the size of a dimension that does not grow differs.
    """
    sizes = tuple(n if b is None else b for n, b in zip(info.shape, stored, strict=True))
    for axis, n, b in zip(info.param.axes, info.shape, stored, strict=True):
        if b is None and axis in GROWS and not info.fixed and (modes_matter or not axis.startswith("modes")):
            raise MupError(
                f"{source} has no base size (null) for the {axis!r} dimension of {name!r}, so the growth of the model is "
                "unknown. Save base shapes with neuralop_mup.save_base_shapes(base_model, path)"
                + (", or use rule='none'." if axis.startswith("modes") else ".")
            )
        if axis not in GROWS and b not in (None, n):
            raise MupError(
                f"Parameter {name!r} has shape {info.shape} in the model but {sizes} in {source}. The shapes differ on an "
                f"axis of kind {axis!r}, which does not depend on width or modes. Pass a base with the same architecture."
            )
    return sizes


def assign_roles(
    found: Mapping[str, ParameterInfo], grows: Mapping[str, tuple[bool, ...]], trainable: bool = True
) -> dict[str, ParameterInfo]:
    """Return the parameters with the roles and axes that follow from the growing dimensions.

    Raises
    ------
    MupError
        If two dimensions of an undescribed parameter grow, if a parameter that grows is shared under two names, or if it is
        frozen although it must be trainable.
    """
    growing = {name for name, own in grows.items() if any(own)}
    # All factors of a kernel are treated as growing, even if only the modes of one factor grow.
    kernels = {found[name].owner for name in growing if found[name].param.role == "spectral"}
    result = {}
    for name, info in found.items():
        in_kernel = info.param.role == "spectral" and info.owner in kernels
        is_constant = info.param.init == UNKNOWN and info.frozen  # e.g. random frequencies
        is_fixed = is_constant or (growing.isdisjoint((name, *info.init_of)) and not in_kernel)
        where = f"{name.rpartition('.')[2]!r} of module {info.owner or '(the model)'!r} ({info.layer})"
        n_unknown = sum(grows[name]) if info.param.init == UNKNOWN and not is_constant else 0
        if n_unknown > 1:
            raise _undescribed(info, found, grows, f"{where}, of shape {info.shape},")
        if n_unknown and ".parametrizations." in f".{name}":
            raise MupError(
                f"{name!r} grows with the model, but its μP role is unknown, because torch computes a weight from it "
                "(weight_norm, spectral_norm or similar). Remove the parametrization from this layer, or describe the "
                "parameters of the layer with nm.register_layer."
            )
        param = placed(info.param, grows[name])
        if is_fixed:
            param = replace(param, frozen=info.frozen)
        elif info.shared:
            raise MupError(
                f"{name!r} is shared with {info.shared!r}, which has a different role, but a tensor cannot follow two "
                "rules. Use two tensors."
            )
        elif info.frozen and trainable and not param.frozen:
            raise MupError(
                f"Parameter {where} is frozen (requires_grad=False). Freeze it after calling parametrize, or pass "
                "init=False if the weights are trained. If the constructor of its layer freezes it, describe it with "
                "nm.register_layer and nm.Param(…, frozen=True)."
            )
        result[name] = replace(info, param=param, fixed=is_fixed)
    return result


def _undescribed(
    info: ParameterInfo, found: Mapping[str, ParameterInfo], grows: Mapping[str, tuple[bool, ...]], where: str
) -> MupError:
    """Return an error that includes the line to describe all parameters of the class."""
    params = {
        other.rpartition(".")[2]: its.proposal or "nm.Param(…)"
        for other, its in found.items()
        if its.layer == info.layer and its.param.init == UNKNOWN and sum(grows[other]) > 1
    }
    what = "A Param specifies the role, the kinds of the dimensions, such as ('out', 'in'), and the initialization."
    return MupError(
        f"Two dimensions of parameter {where} grow, but it has no description, so its μP role is unknown. "
        f"{info.evidence or what} Write {registration(params, info.owner, info.layer)}."
    )


def placed(param: Param, grows: tuple[bool, ...]) -> Param:
    """Return the description of a parameter in this model, with fixed channels if they do not grow.

    A matrix is hidden if it reads and writes growing channels, a readout if it only reads them, and an input otherwise. An
    undescribed parameter is a vector along the dimension that grows.
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
