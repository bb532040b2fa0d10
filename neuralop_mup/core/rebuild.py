"""Build or read the base of a model, and build probes of other sizes.

A *part* is the model, or a model inside it, that keeps its constructor arguments, one of them a width. The package builds
it again on the meta device, as a base and as a probe. A base may also be a model or a file.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from numbers import Integral
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.arguments import (
    code_of,
    constructor_arguments,
    defaults_of,
    each,
    is_size,
    keeps_all_arguments,
    keeps_arguments,
    names_of_arguments,
    solve_arguments,
)
from neuralop_mup.core.build_models import build_or_none, changed_dims, construct, new, sizes_of
from neuralop_mup.core.describe_model import ParameterInfo, describe_model
from neuralop_mup.core.infshape import load_shapes
from neuralop_mup.errors import MupError, nearest

# The reference size: the size for the default learning rates.
WIDTH = 32
MODES = 16
# Names of widths and modes: neuralop's (GINO's begin with fno_), then PhysicsNeMo's, then usual names.
_THEIRS = (
    *("hidden_channels", "fno_hidden_channels", "hidden_variable_codimension", "latent_channels", "embed_dim"),
    *("hidden_dim", "width"),
)
WIDTHS = (*_THEIRS, "dim", "d_model", "model_dim", "latent_dim", "hidden_size", "n_hidden")
# Proportional to the width, unless they are 1.
_FURTHER_WIDTHS = ("uno_out_channels", "attention_token_dim")
_MODES = (
    *("n_modes", "fno_n_modes", "max_n_modes", "fno_max_n_modes", "uno_n_modes", "num_fno_modes"),
    *("modes", "modes1", "modes2", "modes3", "modes_x", "modes_y", "modes_z"),
)
_DATA = ("in_channels", "out_channels", "fno_in_channels", "in_channel", "out_channel")
# An argument is a factor, not a width, if kernels have at least this many times as many channels.
_FACTOR = 8


@dataclass(frozen=True)
class RebuildableModel:
    """A model that can be built again at other sizes.

    Attributes
    ----------
    name, model : str, torch.nn.Module
        The model, and its name in the whole model.
    arguments : mapping
        The model's constructor arguments.
    described : mapping of str to ParameterInfo
        Parameters of the whole model.
    solved : sequence of str
        Arguments solved from the model's shapes.
    derived : mapping
        Defaults of the arguments that the constructor replaces, as in ``mlp_dim or 4 * width``. The model has the same
        shapes with the default.
    """

    name: str
    model: nn.Module
    arguments: Mapping[str, Any]
    described: Mapping[str, ParameterInfo]
    solved: Sequence[str] = ()
    derived: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prefix(self) -> str:
        return f"{self.name}." if self.name else ""

    @cached_property
    def infos(self) -> dict[str, ParameterInfo]:
        """Parameters of the model, by name without its prefix."""
        described = self.described.items()
        return {name.removeprefix(self.prefix): info for name, info in described if name.startswith(self.prefix)}

    @cached_property
    def kernels(self) -> list[str]:
        return [name for name, info in self.infos.items() if info.param.role == "spectral" or info.proposal]

    @property
    def named_widths(self) -> list[str]:
        """Integer arguments with a usual name of a width."""
        return [key for key in WIDTHS if isinstance(self.arguments.get(key), Integral)]

    @cached_property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        return sizes_of(self.model)

    def built(self, **overrides: Any) -> nn.Module:
        """Return a model of the same class from its arguments and overrides, on the meta device if possible."""
        arguments = {**self.arguments, **self.derived, **overrides}
        return construct(lambda: new(type(self.model), arguments), f"{type(self.model).__name__} with {overrides}")

    def enlarged(self, *keys: str) -> dict[str, tuple[int, ...]]:
        """Return the model's sizes with these arguments doubled, or tripled if doubling removes a layer, as in GNOBlock."""
        for factor in (2, 3):
            sizes = sizes_of(self.built(**{key: _times(self.arguments[key], factor, key) for key in keys}))
            if sizes.keys() == self.sizes.keys():
                break
        return sizes

    def effects(self, *keys: str) -> dict[str, set[int]]:
        """Return the dimensions that change if these arguments grow, by parameter; without arguments, if built again.

        An error of the constructor is a change.
        """
        try:
            return changed_dims(self.sizes, self.enlarged(*keys))
        except MupError as error:  # for example an image that must be square
            return {str(error): set()}

    @cached_property
    def widths(self) -> list[str]:
        """Arguments that are a width. In user-defined classes, kernels grow with each of them, or only with all together.
        The width of an image or of a decoder is excluded, and so is a factor such as 1.5.
        """
        named = self.named_widths
        if keeps_arguments(self.model):  # a subclass may add other names
            return [key for key in named if key in _THEIRS or self._widens(key)]
        if found := [key for key in named if self._widens(key)] or (named if named and self._widens(*named) else []):
            return found
        numbers = [key for key, value in self.arguments.items() if isinstance(value, Integral)]
        others = [key for key in numbers if key not in (*_DATA, *_MODES) and self._widens(key, only_channels=True)]
        return others if len(others) == 1 else []

    def _widens(self, *keys: str, only_channels: bool = False) -> bool:
        """Return whether kernels grow with arguments that are no factors; with ``only_channels``, all kernels, and no modes.

        If the model has no kernels, all its parameters count.
        """
        effects = self.effects(*keys)
        grown = [(info, a) for name, info in self.infos.items() for a in effects.get(name, ())]
        grown = [(info, a) for info, a in grown if info.proposal or info.param.role == "spectral" or not self.kernels]
        if not grown or min(info.tensor_shape[a] for info, a in grown) >= _FACTOR * min(self.arguments[key] for key in keys):
            return False
        are_channels = {info.param.axes[a] for info, a in grown} <= {"in", "out"}
        return not only_channels or (bool(self.kernels) and effects.keys() >= {*self.kernels} and are_channels)

    @property
    def possible_widths(self) -> dict[str, str]:
        """Arguments that may be a width but do not grow with the kernels. Each has the name of a parameter that connects
        its dimension with one that grows.

        For an inner width, one layer writes the channels first, then another reads them. For data, a layer reads them first.
        """
        if keeps_arguments(self.model) or not self.widths:
            return {}
        grows, found = changed_dims(self.sizes, self.probes["width"]), {}
        for key, value in self.arguments.items():
            is_other = key not in (*self.widths, *self.derived, *_MODES, *_DATA) and is_size(value)
            effects = self.effects(key) if is_other else {}
            growing = {name: effects.get(name, set()) - grows[name] for name in self.infos if grows.get(name)}
            dims = [(name, self.infos[name].param.axes[a]) for name, own in growing.items() for a in own]
            if dims and (key in WIDTHS or (dims[0][1] == "out" and "in" in dict(dims).values())):
                found[key] = dims[0][0]
        return found

    @cached_property
    def probes(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """Sizes at twice the width and at twice the modes."""
        doubled = {"width": (*self.widths, *_FURTHER_WIDTHS), "modes": _MODES}
        given = {key for key, value in self.arguments.items() if value is not None}
        return {what: self.enlarged(*given.intersection(keys)) for what, keys in doubled.items() if given.intersection(keys)}


def _times(value: Any, factor: int, key: str) -> Any:
    """Multiply a size by a factor. A token with one channel is no width and stays."""
    return each(value, lambda n: n if key in _FURTHER_WIDTHS and n == 1 else n * factor)


def _with_derived(part: RebuildableModel) -> RebuildableModel:
    """Return the part with the arguments that its constructor replaces."""
    defaults = {} if keeps_arguments(part.model) else defaults_of(type(part.model))
    # A default may depend on an earlier argument, so start with the last one.
    for key, default in reversed(defaults.items()):
        own = part.arguments.get(key)
        with_default = replace(part, derived={**part.derived, key: default})
        is_other = key not in part.solved and is_size(own) and _as_tuples(own) != _as_tuples(default)
        if is_other and part.effects(key) and not with_default.effects():
            part = with_default
    return part


def find_rebuildable(model: nn.Module, described: Mapping[str, ParameterInfo], base: Any) -> list[RebuildableModel]:
    """Return the outermost parts with kernels, stored arguments and a width. The model itself may be one."""
    overrides = base if isinstance(base, Mapping) else {}
    builds_base = base is None or isinstance(base, Mapping)
    rebuildable: list[RebuildableModel] = []
    for name, module in model.named_modules():
        if f"{name}.".startswith(tuple(outer.prefix for outer in rebuildable)):
            continue
        is_named = bool(overrides) and overrides.keys() <= set(names_of_arguments(type(module)))
        part = RebuildableModel(name, module, constructor_arguments(module) or {}, described)
        if name and not part.kernels:
            continue
        part = _with_solved_arguments(_with_derived(part), builds_base, is_named)
        if not part.arguments or not (is_named or part.named_widths or part.widths):
            continue
        if not (changed := next(iter(part.effects()), "")):
            rebuildable += [part] if is_named or part.widths else []
        elif builds_base and not name and keeps_all_arguments(module):
            raise MupError(
                f"{type(module).__name__} was changed after construction: its constructor arguments give another "
                f"{changed!r}. So a base cannot be built from overrides. Pass a base model with the same change."
            )
    if builds_base and not rebuildable:
        cls, reference = type(model).__name__, f"{WIDTH} channels and n_modes {MODES} on each axis"
        if not any(info.param.role == "spectral" or info.proposal for info in described.values()):
            raise MupError(
                f"{cls} contains no Fourier kernel of a known type, so its size is unknown. Parametrize the whole "
                f"neural operator, or pass its base: nm.parametrize(model, base=lambda: {cls}(…))."
            )
        sizes, small = ("these sizes", "") if overrides else (reference, ", init_mult={'kernel': 0.1}")
        raise MupError(
            f"{cls} cannot be built {f'from overrides {dict(base)}' if overrides else 'at the reference size'}: it does not "
            f"keep all its constructor arguments, or none is the width of its kernels (usual names: {', '.join(WIDTHS)}). "
            f"Write nm.parametrize(model, base=lambda: {cls}(…){small}) with {sizes} and all else as in the model. Or let "
            f"{cls} keep each argument under its own name (self.hidden_channels = hidden_channels)."
        )
    return rebuildable


def _with_solved_arguments(part: RebuildableModel, builds_base: bool, is_named: bool) -> RebuildableModel:
    """Return the part with arguments solved from its shapes if it does not keep all.

    Raises
    ------
    MupError
        If several solutions exist and differ in the dimensions that grow, and the base is to be built.
    """
    model = part.model
    if not part.kernels or not {*WIDTHS} & {*names_of_arguments(type(model))} or keeps_all_arguments(model):
        return part
    if part.arguments and not part.effects():
        return part
    solutions = [
        _with_derived(
            RebuildableModel(
                part.name, model, arguments, part.described, [key for key in arguments if key not in vars(model)]
            )
        )
        for arguments in solve_arguments(model, partial(build_or_none, type(model)))
    ]
    solutions = [solution for solution in solutions if solution.widths or is_named]
    others = [solution for solution in solutions if solution.probes != solutions[0].probes]
    if others and builds_base:
        one, two = ({key: s.arguments[key] for key in s.solved} for s in (solutions[0], others[0]))
        raise MupError(
            f"{type(model).__name__} does not keep its constructor arguments. Both {one} and {two} give its shapes, but "
            "different dimensions grow with the width. Pass the base: "
            f"nm.parametrize(model, base=lambda: {type(model).__name__}(…))."
        )
    return solutions[0] if solutions and not others else part


def _fixed_sizes(model: nn.Module, parts: Sequence[RebuildableModel], overrides: Mapping[str, Any]) -> Iterator[str]:
    """Yield warnings of layers and arguments that stay fixed at base but may grow with the kernels."""
    cls, inside = type(model).__name__, tuple(part.prefix for part in parts)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad and p.ndim > 1}
    for part in parts:
        sizes = {part.arguments[key] for key in part.named_widths}
        same_size = (name for name, shape in shapes.items() if not name.startswith(inside) and sizes & {*shape})
        if (name := next(same_size, None)) is not None:
            yield (
                f"{name!r} of {cls}, of shape {shapes[name]}, is as wide as {part.name!r}. It is treated as fixed. If it "
                "grows, pass a base of another width, base=lambda: …, or let your class keep each constructor argument, "
                "the width under a usual name (self.width = width)."
                f"{_arguments_that_change(model, name, part.described)}"
            )
        for key, name in part.possible_widths.items():
            if key not in overrides:
                yield (
                    f"{key} = {part.arguments[key]} of {type(part.model).__name__} stays the same at base, although "
                    f"{part.prefix + name!r} grows with {part.widths[0]} in its other dimension. If {key} grows with the "
                    f"model, write its size at base: base={{{part.widths[0]!r}: …, {key!r}: …}}."
                )


def _arguments_that_change(model: nn.Module, name: str, described: Mapping[str, ParameterInfo]) -> str:
    """Return a sentence with the line to write if constructor arguments change a parameter's shape, else an empty one."""
    whole = _with_derived(RebuildableModel("", model, constructor_arguments(model) or {}, described))
    sizes = [key for key, value in whole.arguments.items() if key not in _DATA and is_size(value)]
    keys = [key for key in sizes if name in whole.effects(key)] if not whole.effects() else []
    return f" It changes with {', '.join(keys)}: base={{{keys[0]!r}: …}}." if keys else ""


def reference_sizes(part: RebuildableModel) -> dict[str, Any]:
    """Return constructor overrides for the reference size: 32 channels, and n_modes 16 on each axis."""
    arguments = {key: value for key, value in part.arguments.items() if value is not None}
    width = arguments[part.widths[0]]
    return {
        **dict.fromkeys(part.widths, WIDTH),
        **{
            key: each(arguments[key], lambda own: max(1, round(own * WIDTH / width)))
            for key in _FURTHER_WIDTHS
            if key in arguments
        },
        **{key: each(arguments[key], lambda own: MODES) for key in _MODES if key in arguments},
    }


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, (list, tuple)) else value


def probe(parts: Iterable[RebuildableModel]) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the shapes of all parameters with twice the width or modes in one part, by a description of the change."""
    return {
        f"{part.name or type(part.model).__name__} of twice the {what}": {part.prefix + n: s for n, s in shapes.items()}
        for part in parts
        if part.widths
        for what, shapes in part.probes.items()
    }


def _check_overrides(part: RebuildableModel, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides. Raise MupError if the part does not accept one, or one changes more than sizes."""
    cls, names = type(part.model), names_of_arguments(type(part.model))
    for key, value in overrides.items():
        own = part.arguments.get(key)
        if key not in names:
            raise MupError(f"base has the key {key!r}, but {cls.__name__} does not accept it: {nearest(str(key), names)}")
        # The constructor may check the number of modes too late.
        if key in _MODES and is_size(value) and _as_tuples(each(value, lambda n: 0)) != _as_tuples(each(own, lambda n: 0)):
            raise MupError(f"base has {key} = {value!r} and the model {own!r}. Pass as many numbers, one for each axis.")
        _check_choice(part, key, value)
    return dict(overrides)


def _check_choice(part: RebuildableModel, key: str, at_base: Any) -> None:
    """Raise MupError if base differs from the part in a choice, or in a size of the data."""
    own, where = part.arguments.get(key), f" in {part.name!r}" if part.name else ""
    are_sizes = key not in _DATA and is_size(at_base) and is_size(own)
    if not are_sizes and not _is_same(at_base, own):
        raise MupError(
            f"base has {key} = {at_base!r} and the model {own!r}{where}. Both must be the same architecture for the same "
            "data: base may differ only in width, modes and depth."
        )


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and (a.is_meta or b.is_meta):
        return a.shape == b.shape  # a function that makes its tensors ran on the meta device
    # Each call creates new objects for a lambda, a partial or a module.
    if type(a).__eq__ is object.__eq__:
        return code_of(a) == code_of(b)
    same: Any = type(a) is type(b) and a == b
    return bool(same.all() if hasattr(same, "all") else same)


@dataclass(frozen=True)
class Base:
    """The shapes of a base and of probes.

    Attributes
    ----------
    shapes : mapping of str to tuple
        Logical shapes of the base's parameters by name. In a file, None is a dimension that never grows.
    source : str
        Description of the base for messages.
    probes : mapping of str to mapping
        Shapes of all parameters at larger sizes, by a description such as "FNO of twice the width".
    is_file, by_mup : bool
        Whether the base is a file, and whether mup wrote it. mup stores shapes of tensors instead of active modes.
    warnings : sequence of str
        Sizes that may grow but do not.
    """

    shapes: Mapping[str, Sequence[int | None]]
    source: str
    probes: Mapping[str, Mapping[str, tuple[int, ...]]]
    is_file: bool = False
    by_mup: bool = False
    warnings: Sequence[str] = ()


def read_base(model: nn.Module, found: Mapping[str, ParameterInfo], base: Any) -> Base:
    """Build the base if necessary, and read it.

    Parameters
    ----------
    model : torch.nn.Module
        The bare model.
    found : mapping
        Result of :func:`~neuralop_mup.core.describe_model.describe_model`.
    base : mapping, torch.nn.Module, callable, path or None
        As for :func:`neuralop_mup.parametrize`.

    Raises
    ------
    MupError
        If base cannot be built or read, or differs from the model in more than sizes.
    """
    parts = find_rebuildable(model, found, base)
    if isinstance(base, (str, os.PathLike)):
        shapes, ours = load_shapes(base)
        return Base(shapes, repr(os.fspath(base)), probe(parts), is_file=True, by_mup=not ours)
    fixed_sizes: list[str] = []
    if base is None or isinstance(base, Mapping):
        fixed_sizes += _fixed_sizes(model, parts, base or {})
        overrides = [reference_sizes(part) if base is None else _check_overrides(part, base) for part in parts]
        models = {part.prefix: part.built(**own) for part, own in zip(parts, overrides, strict=True)}
        words = dict.fromkeys(f"{key} = {value}" for own in overrides for key, value in own.items())
        source = ("the reference size: " if base is None else "") + (", ".join(words) or "the model's own size")
        if solved := [f"{key} = {part.arguments[key]}" for part in parts for key in part.solved]:
            source += f" (solved from the model's shapes: {', '.join(solved)})"
    else:
        given = construct(base, "The base function") if callable(base) and not isinstance(base, nn.Module) else base
        if not isinstance(given, nn.Module):
            raise MupError(
                f"base is or returns a {type(given).__name__}. Pass overrides such as {{'hidden_channels': 32}}, "
                "a base model, a function that returns one, or the path of a base-shape file."
            )
        models, source = {"": given}, "the base model"
        theirs = {name: constructor_arguments(module) or {} for name, module in given.named_modules()}
        for part in parts:
            at_base = theirs.get(part.name, {})
            # Channels between the whole model and a part may grow. Those of the data may not.
            between = _DATA if part.name else ()
            for key in (part.arguments.keys() & at_base.keys()).difference(between):
                _check_choice(part, key, at_base[key])
    # Parameters outside the rebuilt parts are those of the model.
    infos = {name: info for name, info in found.items() if not name.startswith(tuple(models))}
    for prefix, module in models.items():
        infos |= describe_model(module, prefix)
    return Base({name: info.shape for name, info in infos.items()}, source, probe(parts), warnings=fixed_sizes)
