"""Which dimensions of a model's parameters grow: measured, on the model against its base and against probes.

A *part* is a model, or a model inside of another, that keeps its constructor's arguments. It is built again on the meta
device with its width doubled; a dimension that is larger then, or other than at base, grows. Where no arguments are kept the
base alone shows it, as in mup.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from numbers import Real
from typing import Any

from torch import nn

from neuralop_mup.core.arguments import (
    construct,
    constructor_arguments,
    keeps_arguments,
    names_of_arguments,
    rebuild,
    sizes_of,
)
from neuralop_mup.core.depth import Layers, match_layers
from neuralop_mup.core.infshape import GROWS, load_shapes
from neuralop_mup.core.layers import UNKNOWN
from neuralop_mup.core.reading import ParameterInfo, place, read, shared
from neuralop_mup.errors import MupError, nearest

# The reference size, at which default learning rates are meant.
WIDTH = 32
MODES = 16
# What models call their width and their modes: neuralop's (GINO's begin with fno_), then PhysicsNeMo's, then usual names.
WIDTHS = ("hidden_channels", "fno_hidden_channels", "hidden_variable_codimension", "latent_channels", "embed_dim", "width")
# In proportion to the width, where they are not 1.
_FURTHER_WIDTHS = ("uno_out_channels", "attention_token_dim")
_MODES = ("n_modes", "fno_n_modes", "max_n_modes", "fno_max_n_modes", "uno_n_modes", "num_fno_modes", "modes")
_DATA = ("in_channels", "out_channels", "fno_in_channels", "in_channel", "out_channel")

Shapes = dict[str, tuple[int, ...]]
Growth = dict[str, tuple[bool, ...]]


@dataclass(frozen=True)
class Part:
    """A model that can be built again: its name in the whole model, and the arguments that it was built with."""

    name: str
    model: nn.Module
    arguments: Mapping[str, Any]

    @property
    def prefix(self) -> str:
        return f"{self.name}." if self.name else ""

    @property
    def is_wide(self) -> bool:
        """Whether an argument is known to be its width."""
        return any(self.arguments.get(key) is not None for key in WIDTHS)

    def built(self, **overrides: Any) -> nn.Module:
        return rebuild(self.model, self.arguments, overrides)

    @cached_property
    def changed(self) -> str | None:
        """What the arguments give otherwise than the model has it now; None if they describe it."""
        try:
            again = sizes_of(self.built())
        except MupError as error:
            return str(error)
        now = sizes_of(self.model)
        return next((name for name in {**now, **again} if now.get(name) != again.get(name)), None)


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
    is_reference : bool
        Whether base has the reference size.
    how : str
        What was measured against what, in words.
    """

    found: dict[str, ParameterInfo]
    at_base: Shapes
    layers: dict[str, Layers]
    is_reference: bool
    how: str


def measure(model: nn.Module, base: Any, rule: str) -> Measured:
    """Build or read the base, and find out which dimensions grow.

    Parameters
    ----------
    model : torch.nn.Module
        The bare model.
    base : mapping, torch.nn.Module, callable, path or None
        As for :func:`neuralop_mup.parametrize`.
    rule : str
        Name of the rule, under which a file may lack the modes.

    Raises
    ------
    MupError
        If the base cannot be built or differs in more than sizes, or nothing tells what grows.
    """
    found = read(model)
    parts = _parts(model, found, base)
    probed = [part for part in parts if part.is_wide]
    is_reference = False
    if isinstance(base, (str, os.PathLike)):
        source = repr(os.fspath(base))
        stored, layers = _of_file(found, os.fspath(base))
        grows = _with_probes(found, {name: tuple(b is not None for b in sizes) for name, sizes in stored.items()}, probed)
        at_base = _without_null(found, stored, grows, source, rule)
    else:
        if base is None or isinstance(base, Mapping):
            overrides = [reference_sizes(part) if base is None else _checked(part, base) for part in parts]
            read_base = _read_parts(found, parts, overrides)
            sizes = [{**part.arguments, **own} for part, own in zip(parts, overrides, strict=True)]
            source = _in_words(overrides)
        else:
            whole = _given(model, base)
            read_base, source = read(whole), "the base model"
            inside = dict(whole.named_modules())
            sizes = [constructor_arguments(inside.get(part.name)) or {} for part in parts]
        is_reference = bool(probed) and all(map(_is_reference, parts, sizes))
        at_base, layers = _matched_shapes(found, read_base)
        differs = {
            name: tuple(n != b for n, b in zip(info.shape, at_base[name], strict=True)) for name, info in found.items()
        }
        grows = _with_probes(found, differs, probed)
    if not probed:
        _check_something_grows(model, found, grows)
    found = place(found, grows)
    _check_sizes(found, at_base, layers, source)
    how = f"base: {'the reference size: ' if base is None else ''}{source}; what grows with width was measured against it"
    return Measured(found, at_base, layers, is_reference, how + _of_probes(probed))


def reference_sizes(part: Part) -> dict[str, Any]:
    """Constructor overrides that bring a model to the reference size: 32 channels, and n_modes 16 on each axis."""
    arguments = {key: value for key, value in part.arguments.items() if value is not None}
    width = next(arguments[key] for key in WIDTHS if key in arguments)
    return {
        **{key: WIDTH for key in WIDTHS if key in arguments},
        **{
            key: _each(arguments[key], lambda own: max(1, round(own * WIDTH / width)))
            for key in _FURTHER_WIDTHS
            if key in arguments
        },
        **{key: _each(arguments[key], lambda own: MODES) for key in _MODES if key in arguments},
    }


def reference_base(model: nn.Module) -> dict[str, Any]:
    """:func:`reference_sizes` of a model that keeps its own arguments.

    Raises
    ------
    MupError
        If it does not, or none of them says how wide it is.
    """
    part = Part("", model, constructor_arguments(model) or {})
    if not part.is_wide:
        raise MupError(_what_to_give(model, None))
    return reference_sizes(part)


def _each(value: Any, to: Callable[[Any], Any]) -> Any:
    """Another number in place of a number, or of each in a list or tuple."""
    return type(value)([_each(item, to) for item in value]) if isinstance(value, (list, tuple)) else to(value)


def _is_reference(part: Part, sizes: Mapping[str, Any]) -> bool:
    return all(_numbers(sizes.get(key)) == _numbers(value) for key, value in reference_sizes(part).items())


def _numbers(value: Any) -> Any:
    """Tuples and lists alike."""
    return [_numbers(item) for item in value] if isinstance(value, (list, tuple)) else value


def _parts(model: nn.Module, found: Mapping[str, ParameterInfo], base: Any) -> list[Part]:
    """The outermost models that hold kernels, keep their arguments and say how wide they are; it may be the model itself."""
    kernels = [name for name, info in found.items() if info.param.role == "spectral"]
    overrides = base if isinstance(base, Mapping) else {}
    builds_base = base is None or isinstance(base, Mapping)
    parts: list[Part] = []
    for name, module in model.named_modules():
        if any(f"{name}.".startswith(part.prefix) for part in parts):
            continue
        part = Part(name, module, constructor_arguments(module) or {})
        is_meant = bool(overrides) and overrides.keys() <= set(names_of_arguments(type(module)))
        holds_kernels = not name or any(kernel.startswith(part.prefix) for kernel in kernels)
        if not part.arguments or not holds_kernels or not (part.is_wide or is_meant):
            continue
        if part.changed is None:
            parts.append(part)
        elif builds_base and not name:
            raise MupError(
                f"{type(module).__name__} was changed after it was constructed (its constructor arguments give another "
                f"{part.changed!r}), so a base cannot be built from overrides: pass a base model that was changed likewise."
            )
    if builds_base and not parts:
        raise MupError(_what_to_give(model, base))
    return parts


def _what_to_give(model: nn.Module, base: Mapping | None) -> str:
    """The line for a model that nothing tells how to build again."""
    cls = type(model).__name__
    reference = f"{WIDTH} channels and n_modes {MODES} on each axis"
    small = ", init_mult={'kernel': 0.1}" if base is None else ""
    asked = f"built at the reference size ({reference})" if base is None else f"built from overrides {dict(base)}"
    return (
        f"{cls} keeps no constructor arguments that say how wide it is (known are {', '.join(WIDTHS)}), so that it cannot "
        f"be {asked}. Write the base down, nm.parametrize(model, base=lambda: {cls}(…){small}), with "
        f"{reference if base is None else 'these sizes'} and all else as the model's; or let {cls} keep its arguments under "
        "their own names (self.hidden_channels = hidden_channels)."
    )


def _checked(part: Part, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides that a part takes, and that change sizes alone."""
    cls, stored = type(part.model).__name__, part.arguments
    names = names_of_arguments(type(part.model))
    for key, value in overrides.items():
        own = stored.get(key)
        if key not in names:
            raise MupError(f"base has the key {key!r}, which {cls} does not take: {nearest(str(key), names)}")
        if key in _DATA or not (_is_size(value) and _is_size(own)):
            _check_equal(key, value, own)
        elif key in _MODES and _length(value) != _length(own):  # the constructor may say so too late
            raise MupError(
                f"base gives {key} = {value!r}, and the model has {own!r}: give as many numbers, one for each axis."
            )
    return dict(overrides)


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, (list, tuple)) else None


def _is_size(value: object) -> bool:
    """A number or a sequence of numbers; a choice (a string, a flag, None, a function) is not."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_size, value))
    return isinstance(value, Real) and not isinstance(value, bool)


def _check_equal(key: str, at_base: Any, own: Any, where: str = "") -> None:
    """Refuse a choice, or a size of the data, that is another at base."""
    if not _is_same(at_base, own):
        raise MupError(
            f"base has {key} = {at_base!r} and the model {own!r}{where}: base may differ from the model in width, modes and "
            "depth only, so that both are the same architecture, for the same data."
        )


def _is_same(a: Any, b: Any) -> bool:
    if callable(a) and callable(b):  # a lambda or a partial is another object each time that it is written
        return _code(a) == _code(b)
    if type(a) is not type(b):
        return False
    same = a == b
    return bool(same.all() if hasattr(same, "all") else same)


def _code(function: Any) -> Any:
    if isinstance(function, partial):
        return _code(function.func), function.args, tuple(sorted(function.keywords.items()))
    return getattr(function, "__code__", function if isinstance(function, type) else type(function))


def _given(model: nn.Module, base: Any) -> nn.Module:
    """A base that is a model or a function that builds one, of the same architecture."""
    if not isinstance(base, nn.Module):
        if not callable(base):
            raise MupError(
                f"base is a {type(base).__name__}; give constructor overrides such as {{'hidden_channels': 32}}, a base "
                "model or a function that returns one, or the path of a base-shape file."
            )
        base = construct(base, "The base function")
    at_base = dict(base.named_modules()) if isinstance(base, nn.Module) else {}
    for name, part in model.named_modules():
        if keeps_arguments(part) and name in at_base:
            ours, theirs = constructor_arguments(part) or {}, constructor_arguments(at_base[name]) or {}
            _check_choices(ours, theirs, f" in {name!r}" if name else "")
    return base


def _check_choices(ours: Mapping[str, Any], theirs: Mapping[str, Any], where: str) -> None:
    """Arguments that are no sizes, or sizes of the data, must agree."""
    for key in ours.keys() & theirs.keys():
        is_size = key not in _DATA and _is_size(ours[key]) and _is_size(theirs[key])
        if not is_size and not isinstance(ours[key], nn.Module):
            _check_equal(key, theirs[key], ours[key], where)


def _read_parts(
    found: Mapping[str, ParameterInfo], parts: Iterable[Part], overrides: Iterable[Mapping]
) -> dict[str, ParameterInfo]:
    """The base whose parts are built with overrides; what lies outside of them is as in the model."""
    read_base = dict(found)
    for part, own in zip(parts, overrides, strict=True):
        read_base = {name: info for name, info in read_base.items() if not name.startswith(part.prefix)}
        read_base |= {part.prefix + name: info for name, info in read(part.built(**own)).items()}
    return read_base


def _with_probes(found: Mapping[str, ParameterInfo], grows: Mapping[str, tuple[bool, ...]], parts: Iterable[Part]) -> Growth:
    """What grows where parts are built twice as wide, besides; of parameters that nobody describes, also with more modes."""
    result = dict(grows)
    for part in parts:
        keys = [(*WIDTHS, *_FURTHER_WIDTHS)]
        if any(info.param.init == UNKNOWN and len(info.shape) > 1 for info in found.values()):
            keys.append(_MODES)
        for names in keys:
            for name, tensor in _probe(part, names).named_parameters():
                info = found.get(part.prefix + name)
                if info is not None and (names is not _MODES or info.param.init == UNKNOWN):
                    larger = (n != m for n, m in zip(info.tensor_shape, tensor.shape, strict=True))
                    result[part.prefix + name] = tuple(map(any, zip(result[part.prefix + name], larger, strict=True)))
    return result


def _probe(part: Part, names: Iterable[str]) -> nn.Module:
    """A part with these sizes doubled; tripled if a layer is left out then, as GNOBlock does with one of its ends' width."""
    for factor in (2, 3):
        sizes = {name: _times(part.arguments[name], factor, name) for name in names if part.arguments.get(name) is not None}
        probe = part.built(**sizes)
        if [name for name, _ in probe.named_parameters()] == [name for name, _ in part.model.named_parameters()]:
            break
    return probe


def _times(value: Any, factor: int, name: str) -> Any:
    """A size as many times as large; a token of one channel is no width."""
    return _each(value, lambda n: n if name in _FURTHER_WIDTHS and n == 1 else n * factor)


def _check_something_grows(model: nn.Module, found: Mapping[str, ParameterInfo], grows: Growth) -> None:
    channels = [
        own
        for name, info in found.items()
        for kind, own in zip(info.param.axes, grows[name], strict=True)
        if kind in ("in", "out")
    ]
    if channels and not any(channels):
        cls = type(model).__name__
        raise MupError(
            f"Base and model have the same width, and {cls} keeps no constructor arguments that say how wide it is, so that "
            f"nothing tells which dimensions grow with width: give a base of another width, let {cls} keep its arguments "
            "under their own names (self.hidden_channels = hidden_channels), or give a file of base shapes that were saved "
            "from a wider model."
        )


def _matched_shapes(
    found: Mapping[str, ParameterInfo], base: Mapping[str, ParameterInfo]
) -> tuple[Shapes, dict[str, Layers]]:
    layers = _matched(found, base)
    at_base = {}
    for name, info in found.items():
        own = base[layers[name].at_base(name)]
        if (own.param.axes, own.param.role) != (info.param.axes, info.param.role):
            raise MupError(
                f"Parameter {name!r} is {info.param.role} {info.param.axes} in the model but {own.param.role} "
                f"{own.param.axes} at base: give a base of the same architecture."
            )
        at_base[name] = own.shape
    return at_base, layers


def _matched(found: Mapping[str, ParameterInfo], base: Mapping) -> dict[str, Layers]:
    """What each parameter is compared with, where base has the same parameters but for its number of layers."""
    for name, info in found.items():
        if info.shared in base:
            raise shared(info.shared, name)
    kernels = [name for name, info in found.items() if info.param.role == "spectral"]
    layers = match_layers(found.keys(), base.keys(), kernels)
    if layers is None:
        missing, extra = sorted(found.keys() - base.keys()), sorted(base.keys() - found.keys())
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


def _of_file(found: Mapping[str, ParameterInfo], path: str) -> tuple[dict[str, tuple], dict[str, Layers]]:
    """What a base-shape file gives for each parameter: sizes at base, None for dimensions that it calls fixed."""
    in_file, ours = load_shapes(path)
    layers = _matched(found, in_file)
    stored = {name: in_file[layers[name].at_base(name)] for name in found}
    for name, info in found.items():
        if info.shape != info.tensor_shape and not ours:
            raise MupError(
                f"{path!r} was written by mup, which does not know that {name!r} uses only part of its modes "
                "(max_n_modes): save base shapes with neuralop_mup.save_base_shapes."
            )
        if len(stored[name]) != len(info.shape):
            raise MupError(
                f"{path!r} gives {name!r} {len(stored[name])} dimensions, the model's has {len(info.shape)}: "
                "give a file saved from a model of the same architecture."
            )
    return stored, layers


def _without_null(
    found: Mapping[str, ParameterInfo], stored: Mapping[str, tuple], grows: Growth, source: str, rule: str
) -> Shapes:
    """Null is a dimension that is the same everywhere, and so the model's own; refused where it grows."""
    modes_matter = rule not in ("none", "standard")
    for name, info in place(found, grows, trainable=False).items():
        for axis, b in zip(info.param.axes, stored[name], strict=True):
            if b is None and axis in GROWS and (modes_matter or not axis.startswith("modes")):
                raise MupError(
                    f"{source} gives no base size (null) for the {axis!r} dimension of {name!r}, so how much "
                    "the model grew is unknown: save base shapes with neuralop_mup.save_base_shapes(base_model, path)"
                    + (", or use rule='none'." if axis.startswith("modes") else ".")
                )
    return {
        name: tuple(n if b is None else b for b, n in zip(stored[name], info.shape, strict=True))
        for name, info in found.items()
    }


def _check_sizes(found: Mapping[str, ParameterInfo], shapes: Shapes, layers: Mapping[str, Layers], source: str) -> None:
    for name, other in ((name, in_stack.last) for name, in_stack in layers.items()):
        if (found[name].shape, shapes[name]) != (found[other].shape, shapes[other]):
            raise MupError(
                f"In {source} there are fewer layers than in the model, and the layers are not alike: {name!r} is "
                f"{found[name].shape} (at base {shapes[name]}), {other!r} {found[other].shape} ({shapes[other]}). Which of "
                "them the further ones continue is not known: give a base of the same depth."
            )
    for name, info in found.items():
        for axis, n, b in zip(info.param.axes, info.shape, shapes[name], strict=True):
            if axis not in GROWS and n != b:
                raise MupError(
                    f"Parameter {name!r} is {info.shape} in the model and {shapes[name]} in {source}: they differ on an "
                    f"axis of kind {axis!r}, which neither width nor modes change: give a base of the same architecture."
                )


def _in_words(overrides: Iterable[Mapping[str, Any]]) -> str:
    sizes = dict.fromkeys(f"{key} = {value}" for own in overrides for key, value in own.items())
    return ", ".join(sizes) or "the model's own size"


def _of_probes(parts: Iterable[Part]) -> str:
    names = [part.name or type(part.model).__name__ for part in parts]
    return f" and against {', '.join(names)} of twice the width, on the meta device" if names else ""
