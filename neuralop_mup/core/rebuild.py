"""Build or read the base of a model, and build probes of other sizes.

A *part* is the model, or a model inside it, that keeps its constructor arguments, one of them a width. The package builds
it again on the meta device, as a base and as a probe. A base may also be a model or a file.
"""

import io
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from numbers import Integral
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from neuralop_mup.core.arguments import (
    constructor_arguments,
    defaults_of,
    is_size,
    keeps_all_arguments,
    keeps_arguments,
    names_of_arguments,
    solve_arguments,
)
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
_COMPARING: ContextVar[bool] = ContextVar("comparing", default=False)


def is_built_to_compare() -> bool:
    """Return whether the package is now constructing a base or a probe, to read only its sizes."""
    return _COMPARING.get()


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
    """

    name: str
    model: nn.Module
    arguments: Mapping[str, Any]
    described: Mapping[str, ParameterInfo]
    solved: Sequence[str] = ()

    @property
    def prefix(self) -> str:
        return f"{self.name}." if self.name else ""

    @property
    def kernels(self) -> list[str]:
        """Names of the model's kernels, without its prefix."""
        return [
            name.removeprefix(self.prefix)
            for name, info in self.described.items()
            if (info.param.role == "spectral" or info.proposal) and name.startswith(self.prefix)
        ]

    @property
    def named_widths(self) -> list[str]:
        """Integer arguments with a usual name of a width."""
        return [key for key in WIDTHS if isinstance(self.arguments.get(key), Integral)]

    @cached_property
    def widths(self) -> list[str]:
        """Arguments that are a width. In user-defined classes, kernels grow with each of them, or only with all together.
        The width of an image or of a decoder is excluded, and so is a factor such as 1.5.
        """
        named = self.named_widths
        if keeps_arguments(self.model):  # a subclass may add other names
            return [key for key in named if key in _THEIRS or self._is_widened([key])]
        if found := [key for key in named if self._is_widened([key])] or (named if self._is_widened(named) else []):
            return found
        others = [key for key, value in self.arguments.items() if isinstance(value, Integral) and self._widens_kernels(key)]
        return others if len(others) == 1 else []

    def _widens_kernels(self, key: str) -> bool:
        """Return whether an argument changes the channels of all kernels and no modes."""
        effects = {name: dims for name, dims in self._effects(key).items() if name in self.kernels}
        infos = [(self.described[self.prefix + name], a) for name, dims in effects.items() for a in dims]
        if key in _DATA or key in _MODES or not self.kernels or effects.keys() != {*self.kernels}:
            return False
        is_factor = min(info.tensor_shape[a] for info, a in infos) >= _FACTOR * self.arguments[key]
        return not is_factor and {info.param.axes[a] for info, a in infos} <= {"in", "out"}

    @cached_property
    def derived(self) -> dict[str, Any]:
        """Defaults of the arguments that the constructor replaces, as in ``mlp_dim or 4 * width``. The model has the same
        shapes with the default.
        """
        found: dict[str, Any] = {}
        defaults = {} if keeps_arguments(self.model) else defaults_of(type(self.model))
        # A default may depend on an earlier argument, so start with the last one.
        for key, default in reversed(defaults.items()):
            own = self.arguments.get(key)
            is_other = key not in self.solved and is_size(own) and _as_tuples(own) != _as_tuples(default)
            if is_other and self._effects(key, **found) and not self._changed_by({**found, key: default}):
                found[key] = default
        return found

    def _effects(self, key: str, **others: Any) -> dict[str, set[int]]:
        """Return the dimensions of each parameter that change if an argument is doubled."""
        return self._changed_by({**others, key: _times(self.arguments[key], 2, key)})

    def _changed_by(self, overrides: Mapping[str, Any]) -> dict[str, set[int]]:
        with suppress(MupError):
            shapes = _shapes(construct(lambda: self._built({**self.arguments, **overrides}), "It"))
            own = _shapes(self.model)
            if shapes.keys() == own.keys() and all(len(shapes[name]) == len(shape) for name, shape in own.items()):
                pairs = {name: enumerate(zip(shape, shapes[name], strict=True)) for name, shape in own.items()}
                found = {name: {a for a, (n, m) in dims if n != m} for name, dims in pairs.items()}
                return {name: dims for name, dims in found.items() if dims}
        return {"": set()}

    @property
    def possible_widths(self) -> dict[str, str]:
        """Arguments that may be a width but do not grow with the kernels. Each has the name of a parameter that connects
        its dimension with one that grows.

        For an inner width, one layer writes the channels first, then another reads them. For data, a layer reads them first.
        """
        if keeps_arguments(self.model) or not self.widths:
            return {}
        wider, found = self.probes["width"], {}
        own = _shapes(self.model)
        grows = {n: {a for a, (x, y) in enumerate(zip(s, wider.get(n, s), strict=True)) if x != y} for n, s in own.items()}
        for key, value in self.arguments.items():
            is_other = key not in (*self.widths, *self.derived, *_MODES, *_DATA) and is_size(value)
            effects = self._effects(key, **self.derived) if is_other else {}
            dims = [(name, a) for name, axes in effects.items() if grows.get(name) for a in axes - grows[name]]
            kinds = [self.described[self.prefix + name].param.axes[a] for name, a in dims]
            if dims and (key in WIDTHS or (kinds[0] == "out" and "in" in kinds)):
                found[key] = dims[0][0]
        return found

    def _is_widened(self, keys: Sequence[str]) -> bool:
        try:
            larger = _probe(self, keys)
        except MupError:  # for example an image that must be square
            return False
        own = _shapes(self.model)
        pairs = [(own[name], larger.get(name, own[name])) for name in self.kernels or own]
        if any(len(a) != len(b) for a, b in pairs):  # the dimension of space
            return False
        channels = [n for a, b in pairs for n, m in zip(a, b, strict=True) if n != m]
        return bool(channels) and min(channels) < _FACTOR * min(self.arguments[key] for key in keys)

    @cached_property
    def probes(self) -> dict[str, dict[str, torch.Size]]:
        """Shapes of the parameters at twice the width and at twice the modes."""
        doubled = {"width": (*self.widths, *_FURTHER_WIDTHS), "modes": _MODES}
        given = {key for key, value in self.arguments.items() if value is not None}
        return {what: _probe(self, given.intersection(keys)) for what, keys in doubled.items() if given.intersection(keys)}

    def built(self, **overrides: Any) -> nn.Module:
        """Return a model of the same class from its arguments and overrides, on the meta device if possible."""
        arguments = {**self.arguments, **self.derived, **overrides}
        return construct(lambda: self._built(arguments), f"{type(self.model).__name__} with {overrides}")

    def _built(self, arguments: Mapping[str, Any]) -> nn.Module:
        return type(self.model)(**{key: _copied(value) for key, value in arguments.items()})


def _copied(given: Any) -> Any:
    """Return a copy of a list, module or tensor, since constructors may change their arguments.

    GINO appends to its lists, and its checkpoints contain them. A constructor may draw the weights of its children. On the
    meta device, copies of modules use no memory.
    """
    if not isinstance(given, (list, nn.Module, torch.Tensor)):
        return given
    kept = given.parameters() if isinstance(given, nn.Module) and torch.empty(0).is_meta else ()
    memo: dict[int, Any] = {id(p): nn.Parameter(p.detach().to("meta"), p.requires_grad) for p in kept if not is_lazy(p)}
    try:
        return deepcopy(given, memo)
    except Exception:  # it may hold a lock, for example
        return given


def construct(build: Callable[[], nn.Module], what: str) -> nn.Module:
    """Build on the meta device, without memory.

    If the constructor reads numbers, build on the CPU with weights on the meta device. If it reads weights, build everything
    on the CPU. The state of the random numbers does not change, even if ``build`` seeds them.

    Raises
    ------
    MupError
        If the constructor raises an error.
    """
    try:
        with build_to_compare():
            # Some constructors read tensors. The last attempt raises any other error.
            for without_memory in (torch.device("meta"), _weights_on_meta()):
                with suppress(Exception), without_memory:
                    return build()
            return build()
    except Exception as error:  # report any error of the constructor
        raise MupError(f"{what} cannot be built: {type(error).__name__}: {error}.") from error


@contextmanager
def build_to_compare() -> Iterator[None]:
    """Construct models without side effects: no random numbers, printed text, warnings or plan."""
    comparing = _COMPARING.set(True)
    try:
        # UNO's constructor prints, and layers of unusual sizes warn.
        with torch.random.fork_rng(devices=[]), redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        _COMPARING.reset(comparing)


def build_or_none(cls: type[nn.Module], arguments: Mapping[str, Any], device: str = "meta") -> nn.Module | None:
    """Return a module built with fixed random numbers, or None if its constructor raises an error."""
    with build_to_compare(), suppress(Exception), torch.device(device):
        torch.default_generator.manual_seed(0)  # torch.manual_seed would also seed GPUs
        return cls(**{key: _copied(value) for key, value in arguments.items()})
    return None


@contextmanager
def _weights_on_meta() -> Iterator[None]:
    """Move each parameter to the meta device when a module registers it. Nothing else changes."""

    def without_memory(module: nn.Module, name: str, p: nn.Parameter) -> nn.Parameter | None:
        # The hook affects the whole process, and another thread may build a model to train.
        if not is_built_to_compare() or p.is_meta or is_lazy(p):
            return None
        return nn.Parameter(p.detach().to("meta"), requires_grad=p.requires_grad)

    handle = register_module_parameter_registration_hook(without_memory)  # type: ignore[arg-type]  # may return a parameter
    try:
        yield
    finally:
        handle.remove()


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
        part = _with_solved_arguments(part, builds_base, is_named)
        if not part.arguments or (name and not part.kernels):
            continue
        if not (part.named_widths or is_named or (not keeps_arguments(module) and part.widths)):
            continue
        if not (changed := _changed(part)):
            rebuildable += [part] if is_named or part.widths else []
        elif builds_base and not name and keeps_all_arguments(module):
            raise MupError(
                f"{type(module).__name__} was changed after construction: its constructor arguments give another "
                f"{changed!r}. So a base cannot be built from overrides. Pass a base model with the same change."
            )
    if builds_base:
        _warn_of_fixed_sizes(model, rebuildable, overrides)
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
    if part.arguments and not _changed(part):
        return part
    solutions = [
        replace(part, arguments=arguments, solved=[key for key in arguments if key not in vars(model)])
        for arguments in solve_arguments(model, partial(build_or_none, type(model)))
    ]
    solutions = [solution for solution in solutions if solution.widths or is_named]
    for other in solutions[1:]:
        if other.probes != solutions[0].probes:
            one, two = ({key: s.arguments[key] for key in s.solved} for s in (solutions[0], other))
            if builds_base:
                raise MupError(
                    f"{type(model).__name__} does not keep its constructor arguments. Both {one} and {two} give its shapes, "
                    "but different dimensions grow with the width. Pass the base: "
                    f"nm.parametrize(model, base=lambda: {type(model).__name__}(…))."
                )
            return part
    return solutions[0] if solutions else part


def _warn_of_fixed_sizes(model: nn.Module, parts: Sequence[RebuildableModel], overrides: Mapping[str, Any]) -> None:
    """Warn of layers and arguments that stay fixed at base but may grow with the kernels."""
    cls, inside = type(model).__name__, tuple(part.prefix for part in parts)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad and p.ndim > 1}
    for part in parts:
        sizes = {part.arguments[key] for key in part.named_widths}
        same_size = (name for name, shape in shapes.items() if not name.startswith(inside) and sizes & {*shape})
        if (name := next(same_size, None)) is not None:
            _warn(
                f"{name!r} of {cls}, of shape {shapes[name]}, is as wide as {part.name!r}. It is treated as fixed. If it "
                "grows, pass a base of another width, base=lambda: …, or let your class keep each constructor argument, "
                "the width under a usual name (self.width = width)."
                f"{_arguments_that_change(model, name, part.described)}"
            )
        for key, name in part.possible_widths.items():
            if key not in overrides:
                _warn(
                    f"{key} = {part.arguments[key]} of {type(part.model).__name__} stays the same at base, although "
                    f"{part.prefix + name!r} grows with {part.widths[0]} in its other dimension. If {key} grows with the "
                    f"model, write its size at base: base={{{part.widths[0]!r}: …, {key!r}: …}}."
                )


def _arguments_that_change(model: nn.Module, name: str, described: Mapping[str, ParameterInfo]) -> str:
    """Return a sentence with the line to write if constructor arguments change a parameter's shape, else an empty one."""
    whole = RebuildableModel("", model, constructor_arguments(model) or {}, described)
    sizes = [key for key, value in whole.arguments.items() if key not in _DATA and is_size(value)]
    keys = [key for key in sizes if name in whole._effects(key)] if not _changed(whole) else []
    return f" It changes with {', '.join(keys)}: base={{{keys[0]!r}: …}}." if keys else ""


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=7)  # at the call of parametrize


def _changed(part: RebuildableModel) -> str:
    """Return a size that differs if the model is built again, or an error; empty if all sizes agree."""
    try:
        again = _sizes_of(part.built())
    except MupError as error:
        return str(error)
    now = _sizes_of(part.model)
    return next((name for name in {**now, **again} if now.get(name) != again.get(name)), "")


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    """Return the shape of each parameter."""
    return {name: p.shape for name, p in model.named_parameters()}


def _sizes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of parameters and the active modes of convolutions, by name."""
    named = model.named_parameters(remove_duplicate=False)
    shapes = {name: () if is_lazy(p) else tuple(p.shape) for name, p in named}
    convs = {f"{name}.n_modes": m for name, m in model.named_modules() if hasattr(m, "weight") and hasattr(m, "n_modes")}
    return {**shapes, **{name: active_modes(conv) for name, conv in convs.items()}}


def active_modes(conv: Any) -> tuple[int, ...]:
    """Return the active modes of a convolution. This is cheap enough for every step."""
    return (*as_tuple(conv.n_modes), *getattr(conv, "half_n_modes", ()))


def as_tuple(modes: Any) -> tuple:
    """Return the modes of a layer as a tuple. Layers outside neuralop may keep one number for all axes."""
    return tuple(modes) if isinstance(modes, Iterable) else (modes,)


def reference_sizes(part: RebuildableModel) -> dict[str, Any]:
    """Return constructor overrides for the reference size: 32 channels, and n_modes 16 on each axis."""
    arguments = {key: value for key, value in part.arguments.items() if value is not None}
    width = arguments[part.widths[0]]
    return {
        **dict.fromkeys(part.widths, WIDTH),
        **{
            key: _each(arguments[key], lambda own: max(1, round(own * WIDTH / width)))
            for key in _FURTHER_WIDTHS
            if key in arguments
        },
        **{key: _each(arguments[key], lambda own: MODES) for key in _MODES if key in arguments},
    }


def _each(value: Any, to: Callable[[Any], Any]) -> Any:
    """Apply a function to a number, or to each number in a list or tuple."""
    return type(value)([_each(item, to) for item in value]) if isinstance(value, (list, tuple)) else to(value)


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, (list, tuple)) else value


def probe(parts: Iterable[RebuildableModel]) -> dict[str, dict[str, torch.Size]]:
    """Return the shapes of all parameters with twice the width or modes in one part, by a description of the change."""
    return {
        f"{part.name or type(part.model).__name__} of twice the {what}": {part.prefix + n: s for n, s in shapes.items()}
        for part in parts
        if part.widths
        for what, shapes in part.probes.items()
    }


def _probe(part: RebuildableModel, names: Iterable[str]) -> dict[str, torch.Size]:
    """Return shapes with these sizes doubled, or tripled if doubling removes a layer, as in GNOBlock."""
    for factor in (2, 3):
        sizes = {name: _times(part.arguments[name], factor, name) for name in names}
        shapes = _shapes(part.built(**sizes))
        if list(shapes) == list(_shapes(part.model)):
            break
    return shapes


def _times(value: Any, factor: int, name: str) -> Any:
    """Multiply a size by a factor. A token with one channel is no width and stays."""
    return _each(value, lambda n: n if name in _FURTHER_WIDTHS and n == 1 else n * factor)


def _check_overrides(part: RebuildableModel, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides. Raise MupError if the part does not accept one, or one changes more than sizes."""
    cls, names = type(part.model), names_of_arguments(type(part.model))
    for key, value in overrides.items():
        own = part.arguments.get(key)
        if key not in names:
            raise MupError(f"base has the key {key!r}, but {cls.__name__} does not accept it: {nearest(str(key), names)}")
        # The constructor may check the number of modes too late.
        if key in _MODES and is_size(value) and _as_tuples(_each(value, lambda n: 0)) != _as_tuples(_each(own, lambda n: 0)):
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
        return _code(a) == _code(b)
    same: Any = type(a) is type(b) and a == b
    return bool(same.all() if hasattr(same, "all") else same)


def _code(function: Any) -> Any:
    if isinstance(function, partial):
        return _code(function.func), function.args, tuple(sorted(function.keywords.items()))
    return getattr(function, "__code__", function if isinstance(function, type) else type(function))


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
    """

    shapes: Mapping[str, Sequence[int | None]]
    source: str
    probes: Mapping[str, Mapping[str, tuple[int, ...]]]
    is_file: bool = False
    by_mup: bool = False


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
    if base is None or isinstance(base, Mapping):
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
    return Base({name: info.shape for name, info in infos.items()}, source, probe(parts))
