"""Rebuild a model at other sizes, for its base and for probes.

A model or submodule is *rebuildable* if it stores its constructor arguments and one of them is a width. The package rebuilds
it on the meta device.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from numbers import Integral
from typing import Any

from torch import nn

from neuralop_mup.core.arguments import (
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
from neuralop_mup.core.describe_model import ParameterInfo
from neuralop_mup.errors import MupError

# The reference size of the default learning rates.
WIDTH = 32
MODES = 16
# Argument names of widths and modes, first in neuralop (in GINO, they start with fno_), then in PhysicsNeMo, then in other
# code.
_THEIRS = (
    *("hidden_channels", "fno_hidden_channels", "hidden_variable_codimension", "latent_channels", "embed_dim"),
    *("hidden_dim", "width"),
)
WIDTHS = (*_THEIRS, "dim", "d_model", "model_dim", "latent_dim", "hidden_size", "n_hidden")
# Arguments that are proportional to the width, unless they are 1.
_FURTHER_WIDTHS = ("uno_out_channels", "attention_token_dim")
MODE_NAMES = (
    *("n_modes", "fno_n_modes", "max_n_modes", "fno_max_n_modes", "uno_n_modes", "num_fno_modes"),
    *("modes", "modes1", "modes2", "modes3", "modes_x", "modes_y", "modes_z"),
)
DATA_NAMES = ("in_channels", "out_channels", "fno_in_channels", "in_channel", "out_channel")
# An argument is treated as a factor instead of a width if kernels have at least this many times its value in channels.
_FACTOR = 8


@dataclass(frozen=True)
class RebuildableModel:
    """A model or submodule that can be rebuilt at other sizes.

    Attributes
    ----------
    name, model : str, torch.nn.Module
        The model or submodule, and its qualified name in the top-level model.
    arguments : mapping
        The constructor arguments of ``model``.
    described : mapping of str to ParameterInfo
        Parameters of the top-level model.
    solved : sequence of str
        Arguments that were solved from the shapes of ``model``.
    derived : mapping
        Defaults of arguments that the constructor replaces, as in ``mlp_dim or 4 * width``. With these defaults, the model
        has the same shapes.
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
        """Parameters of ``model``, by name without the prefix."""
        described = self.described.items()
        return {name.removeprefix(self.prefix): info for name, info in described if name.startswith(self.prefix)}

    @cached_property
    def kernels(self) -> list[str]:
        return [name for name, info in self.infos.items() if info.param.role == "spectral" or info.proposal]

    @property
    def named_widths(self) -> list[str]:
        """Integer arguments that have a common name for a width."""
        return [key for key in WIDTHS if isinstance(self.arguments.get(key), Integral)]

    @cached_property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        return sizes_of(self.model)

    def built(self, **overrides: Any) -> nn.Module:
        """Rebuild the model from its arguments and overrides, on the meta device if possible."""
        arguments = {**self.arguments, **self.derived, **overrides}
        return construct(lambda: new(type(self.model), arguments), f"{type(self.model).__name__} with {overrides}")

    def enlarged(self, *keys: str) -> dict[str, tuple[int, ...]]:
        """Return the sizes with the arguments ``keys`` doubled, or tripled if doubling removes a layer (GNOBlock)."""
        for factor in (2, 3):
            sizes = sizes_of(self.built(**{key: _times(self.arguments[key], factor, key) for key in keys}))
            if sizes.keys() == self.sizes.keys():
                break
        return sizes

    def effects(self, *keys: str) -> dict[str, set[int]]:
        """Return, by parameter, the dimensions that change if the model is rebuilt with larger arguments ``keys``.

        If the constructor raises an error, this counts as a change.
        """
        try:
            return changed_dims(self.sizes, self.enlarged(*keys))
        except MupError as error:  # for example, because an image must be square
            return {str(error): set()}

    @cached_property
    def widths(self) -> list[str]:
        """Arguments that are widths.

        In user-defined classes, kernels grow with each of them, or only with all of them together. The width of an image or
        of a decoder is excluded, as are factors such as 1.5.
        """
        named = self.named_widths
        if keeps_arguments(self.model):  # a subclass may add arguments with other names
            return [key for key in named if key in _THEIRS or self._widens(key)]
        if found := [key for key in named if self._widens(key)] or (named if named and self._widens(*named) else []):
            return found
        numbers = [key for key, value in self.arguments.items() if isinstance(value, Integral)]
        others = [key for key in numbers if key not in (*DATA_NAMES, *MODE_NAMES) and self._widens(key, only_channels=True)]
        return others if len(others) == 1 else []

    def _widens(self, *keys: str, only_channels: bool = False) -> bool:
        """Return whether kernels grow with the arguments ``keys``, which must not be factors.

        If the model has no kernels, all its parameters are considered. With ``only_channels``, all kernels must grow, and
        only in channels.
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
        """Arguments that may be widths but do not grow with the kernels, each with the name of a parameter.

        The parameter connects a dimension of this size with a dimension that grows. For an inner width, a layer first writes
        the channels and another layer then reads them. For channels of the data, the first layer reads them.
        """
        if keeps_arguments(self.model) or not self.widths:
            return {}
        grows, found = changed_dims(self.sizes, self.probes["width"]), {}
        for key, value in self.arguments.items():
            is_other = key not in (*self.widths, *self.derived, *MODE_NAMES, *DATA_NAMES) and is_size(value)
            effects = self.effects(key) if is_other else {}
            growing = {name: effects.get(name, set()) - grows[name] for name in self.infos if grows.get(name)}
            dims = [(name, self.infos[name].param.axes[a]) for name, own in growing.items() for a in own]
            if dims and (key in WIDTHS or (dims[0][1] == "out" and "in" in dict(dims).values())):
                found[key] = dims[0][0]
        return found

    @cached_property
    def probes(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """Sizes of the model at twice the width and at twice the modes."""
        doubled = {"width": (*self.widths, *_FURTHER_WIDTHS), "modes": MODE_NAMES}
        given = {key for key, value in self.arguments.items() if value is not None}
        return {what: self.enlarged(*given.intersection(keys)) for what, keys in doubled.items() if given.intersection(keys)}


def _times(value: Any, factor: int, key: str) -> Any:
    """Multiply a size by a factor, except tokens with one channel, which are not widths."""
    return each(value, lambda n: n if key in _FURTHER_WIDTHS and n == 1 else n * factor)


def with_derived(part: RebuildableModel) -> RebuildableModel:
    """Return the model with the arguments that its constructor replaces in ``derived``."""
    defaults = {} if keeps_arguments(part.model) else defaults_of(type(part.model))
    # A default may depend on earlier arguments, so start with the last argument.
    for key, default in reversed(defaults.items()):
        own = part.arguments.get(key)
        with_default = replace(part, derived={**part.derived, key: default})
        is_other = key not in part.solved and is_size(own) and as_tuples(own) != as_tuples(default)
        if is_other and part.effects(key) and not with_default.effects():
            part = with_default
    return part


def find_rebuildable(model: nn.Module, described: Mapping[str, ParameterInfo], base: Any) -> list[RebuildableModel]:
    """Return the outermost submodules, or the model itself, with kernels, stored arguments and a width."""
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
        part = _with_solved_arguments(with_derived(part), builds_base, is_named)
        if not part.arguments or not (is_named or part.named_widths or part.widths):
            continue
        if not (changed := next(iter(part.effects()), "")):
            rebuildable += [part] if is_named or part.widths else []
        elif builds_base and not name and keeps_all_arguments(module):
            raise MupError(
                f"{type(module).__name__} was changed after construction: its constructor arguments give a different "
                f"{changed!r}. A base therefore cannot be built from overrides. Pass a base model with the same change."
            )
    if builds_base and not rebuildable:
        cls, reference = type(model).__name__, f"{WIDTH} channels and n_modes {MODES} on each axis"
        if not any(info.param.role == "spectral" or info.proposal for info in described.values()):
            raise MupError(
                f"{cls} contains no Fourier kernel of a known type, so its width is unknown. Parametrize the complete "
                f"neural operator, or pass its base: nm.parametrize(model, base=lambda: {cls}(…))."
            )
        missing = next((key for key in names_of_arguments(type(model)) if key not in vars(model)), "hidden_channels")
        sizes, small = ("these sizes", "") if overrides else (reference, ", init_mult={'kernel': 0.1}")
        raise MupError(
            f"{cls} cannot be built {f'from overrides {dict(base)}' if overrides else 'at the reference size'}, because it "
            "does not store all its constructor arguments, or none of them is the width of its kernels (usual names: "
            f"{', '.join(WIDTHS)}). Write nm.parametrize(model, base=lambda: {cls}(…){small}) with {sizes} and all other "
            f"arguments as in the model. Alternatively, let {cls} store each argument under its own name "
            f"(self.{missing} = {missing})."
        )
    return rebuildable


def _with_solved_arguments(part: RebuildableModel, builds_base: bool, is_named: bool) -> RebuildableModel:
    """Return the model with arguments solved from its shapes if it does not store all its arguments.

    Raises
    ------
    MupError
        If the base must be built, and there are several solutions that differ in the dimensions that grow.
    """
    model = part.model
    if not part.kernels or not {*WIDTHS} & {*names_of_arguments(type(model))} or keeps_all_arguments(model):
        return part
    if part.arguments and not part.effects():
        return part
    solutions = [
        with_derived(
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
            f"{type(model).__name__} does not store its constructor arguments. Both {one} and {two} give its shapes, but "
            "they differ in the dimensions that grow with the width. Pass the base: nm.parametrize(model, base=lambda: "
            f"{type(model).__name__}(…))."
        )
    return solutions[0] if solutions and not others else part


def reference_sizes(part: RebuildableModel) -> dict[str, Any]:
    """Return constructor overrides for the reference size, which is 32 channels and n_modes 16 on each axis."""
    arguments = {key: value for key, value in part.arguments.items() if value is not None}
    width = arguments[part.widths[0]]
    return {
        **dict.fromkeys(part.widths, WIDTH),
        **{
            key: each(arguments[key], lambda own: max(1, round(own * WIDTH / width)))
            for key in _FURTHER_WIDTHS
            if key in arguments
        },
        **{key: each(arguments[key], lambda own: MODES) for key in MODE_NAMES if key in arguments},
    }


def as_tuples(value: Any) -> Any:
    return tuple(map(as_tuples, value)) if isinstance(value, (list, tuple)) else value


def probe(parts: Iterable[RebuildableModel]) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return, by description, the shapes of all parameters if one submodule has twice the width or modes."""
    return {
        f"{part.name or type(part.model).__name__} of twice the {what}": {part.prefix + n: s for n, s in shapes.items()}
        for part in parts
        if part.widths
        for what, shapes in part.probes.items()
    }
