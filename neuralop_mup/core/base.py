"""Read the base of a model: overrides of constructor arguments, a model, a function or a file."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.arguments import (
    code_of,
    constructor_arguments,
    each,
    is_size,
    names_of_arguments,
)
from neuralop_mup.core.build_models import construct
from neuralop_mup.core.describe_model import ParameterInfo, describe_model
from neuralop_mup.core.infshape import load_shapes
from neuralop_mup.core.rebuild import (
    DATA_NAMES,
    MODE_NAMES,
    RebuildableModel,
    as_tuples,
    find_rebuildable,
    probe,
    reference_sizes,
    with_derived,
)
from neuralop_mup.errors import MupError, nearest


def _fixed_sizes(model: nn.Module, parts: Sequence[RebuildableModel], overrides: Mapping[str, Any]) -> Iterator[str]:
    """Yield warnings about layers and arguments that are the same in the base but may have to grow with the kernels."""
    cls, inside = type(model).__name__, tuple(part.prefix for part in parts)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad and p.ndim > 1}
    for part in parts:
        sizes = {part.arguments[key] for key in part.named_widths}
        same_size = (name for name, shape in shapes.items() if not name.startswith(inside) and sizes & {*shape})
        if (name := next(same_size, None)) is not None:
            yield (
                f"{name!r} of {cls}, of shape {shapes[name]}, has the same width as {part.name!r} but is treated as fixed. "
                "If it should grow, pass a base with a different width, base=lambda: …, or let your class store each "
                "constructor argument, and the width under a usual name (self.width = "
                f"width).{_arguments_that_change(model, name, part.described)}"
            )
        for key, name in part.possible_widths.items():
            if key not in overrides:
                yield (
                    f"{key} = {part.arguments[key]} of {type(part.model).__name__} is the same in the base, although "
                    f"{part.prefix + name!r} grows with {part.widths[0]} in its other dimension. If {key} should grow with "
                    f"the model, pass its base value: base={{{part.widths[0]!r}: …, {key!r}: …}}."
                )


def _arguments_that_change(model: nn.Module, name: str, described: Mapping[str, ParameterInfo]) -> str:
    """Return a sentence that names the constructor arguments that change a parameter's shape, or an empty string."""
    whole = with_derived(RebuildableModel("", model, constructor_arguments(model) or {}, described))
    sizes = [key for key, value in whole.arguments.items() if key not in DATA_NAMES and is_size(value)]
    keys = [key for key in sizes if name in whole.effects(key)] if not whole.effects() else []
    return f" Its shape changes with {', '.join(keys)}: base={{{keys[0]!r}: …}}." if keys else ""


def _check_overrides(part: RebuildableModel, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides; raise MupError if one is not accepted or changes anything other than sizes."""
    cls, names = type(part.model), names_of_arguments(type(part.model))
    for key, value in overrides.items():
        own = part.arguments.get(key)
        if key not in names:
            raise MupError(
                f"base has the key {key!r}, but {cls.__name__} does not accept this argument: {nearest(str(key), names)}"
            )
        # Check the number of axes here, because the constructor may not check it.
        if key in MODE_NAMES and is_size(value) and as_tuples(each(value, lambda n: 0)) != as_tuples(each(own, lambda n: 0)):
            raise MupError(
                f"The base has {key} = {value!r}, but the model has {own!r}. Pass the same number of values, one for each "
                "axis."
            )
        _check_choice(part, key, value)
    return dict(overrides)


def _check_choice(part: RebuildableModel, key: str, at_base: Any) -> None:
    """Raise MupError if the base differs from the model in a choice, or in a size of the data."""
    own, where = part.arguments.get(key), f" in {part.name!r}" if part.name else ""
    are_sizes = key not in DATA_NAMES and is_size(at_base) and is_size(own)
    if not are_sizes and not _is_same(at_base, own):
        raise MupError(
            f"The base has {key} = {at_base!r}, but the model has {own!r}{where}. Both must have the same architecture and "
            "use the same data. The base may only differ in width, modes and depth."
        )


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and (a.is_meta or b.is_meta):
        return a.shape == b.shape  # tensors created on the meta device have no values
    # Lambdas, partials and modules are only equal to themselves, so compare their code.
    if type(a).__eq__ is object.__eq__:
        return code_of(a) == code_of(b)
    same: Any = type(a) is type(b) and a == b
    return bool(same.all() if hasattr(same, "all") else same)


@dataclass(frozen=True)
class Base:
    """Shapes of a base and of probes.

    Attributes
    ----------
    shapes : mapping of str to tuple
        Logical shapes of the base's parameters by name. In a file, None marks a dimension that never grows.
    source : str
        Description of the base, for messages.
    probes : mapping of str to mapping
        Shapes of all parameters at larger sizes, keyed by a description such as "FNO of twice the width".
    is_file, by_mup : bool
        Whether the base is a file, and whether mup wrote it. mup stores the shapes of tensors instead of active modes.
    warnings : sequence of str
        Warnings about sizes that may have to grow but do not.
    """

    shapes: Mapping[str, Sequence[int | None]]
    source: str
    probes: Mapping[str, Mapping[str, tuple[int, ...]]]
    is_file: bool = False
    by_mup: bool = False
    warnings: Sequence[str] = ()


def read_base(model: nn.Module, found: Mapping[str, ParameterInfo], base: Any) -> Base:
    """Build the base if necessary, and read its shapes.

    Parameters
    ----------
    model : torch.nn.Module
        The unwrapped model.
    found : mapping
        Result of :func:`~neuralop_mup.core.describe_model.describe_model`.
    base : mapping, torch.nn.Module, callable, path or None
        See :func:`neuralop_mup.parametrize`.

    Raises
    ------
    MupError
        If the base cannot be built or read, or differs from the model in anything other than sizes.
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
        given = (
            construct(base, "a model with the base function") if callable(base) and not isinstance(base, nn.Module) else base
        )
        if not isinstance(given, nn.Module):
            raise MupError(
                f"base must be or return a torch.nn.Module, got {type(given).__name__}. Pass overrides such as "
                f"{{'hidden_channels': 32}}, a base model, a function that returns a model, or the path of a base-shape "
                "file."
            )
        models, source = {"": given}, "the base model"
        theirs = {name: constructor_arguments(module) or {} for name, module in given.named_modules()}
        for part in parts:
            at_base = theirs.get(part.name, {})
            # The channels of the data must not grow, but channels between the top-level model and a submodule may.
            between = DATA_NAMES if part.name else ()
            for key in (part.arguments.keys() & at_base.keys()).difference(between):
                _check_choice(part, key, at_base[key])
    # Parameters outside the rebuilt submodules have the same shapes as in the model.
    infos = {name: info for name, info in found.items() if not name.startswith(tuple(models))}
    for prefix, module in models.items():
        infos |= describe_model(module, prefix)
    return Base({name: info.shape for name, info in infos.items()}, source, probe(parts), warnings=fixed_sizes)
