"""Recover the constructor arguments of a model."""

import inspect
from collections.abc import Callable, Collection
from typing import Any

from torch import nn

# Functions that return the arguments of models that store them under other names.
KEPT: dict[type, Callable[[Any], dict[str, Any]]] = {}
_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
_NAMED = (_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)


def constructor_arguments(model: nn.Module) -> dict[str, Any] | None:
    """Return the arguments that built ``model``, by name, or None if it does not store them.

    neuralop's BaseModel and PhysicsNeMo's Module store them. For other classes they are the attributes with the same names
    (``self.hidden_channels = hidden_channels``).
    """
    stored = getattr(model, "_init_kwargs", None)
    if stored is not None:
        names = names_of_arguments(type(model), (_POSITIONAL,), inspect.Parameter.VAR_POSITIONAL)
        positional = dict(zip(names, stored.get("args", ()), strict=False))
        return {**{k: v for k, v in stored.items() if k not in ("args", "_name", "_version")}, **positional}
    theirs = getattr(model, "_args", None)
    if isinstance(theirs, dict) and "__args__" in theirs:
        return dict(theirs["__args__"])
    parameters = _parameters(type(model))
    # torch stores modules and buffers separately. A default value takes precedence over a child with the argument's name.
    given = {**_given(model), **{p.name: p.default for p in parameters if p.default is not p.empty}}
    known = {**given, **_attributes(model)}
    arguments = {p.name: known.get(p.name, p.default) for p in parameters}
    is_complete = all(p.kind in _NAMED and arguments[p.name] is not p.empty for p in parameters)
    return arguments if arguments and is_complete else None


def keeps_all_arguments(model: nn.Module) -> bool:
    """Return whether :func:`constructor_arguments` are all stored, with no default in place of an unknown value."""
    kept, given = _attributes(model), _given(model)
    return keeps_arguments(model) or all(
        p.name in kept or (p.name in given and p.default is p.empty) for p in _parameters(type(model))
    )


def _given(model: nn.Module) -> dict[str, Any]:
    return {**dict(model.named_children()), **dict(model.named_buffers(recurse=False))}


def _attributes(model: nn.Module) -> dict[str, Any]:
    return {**vars(model), **next((KEPT[cls](model) for cls in type(model).__mro__ if cls in KEPT), {})}


def _parameters(cls: type) -> list[inspect.Parameter]:
    return list(inspect.signature(cls.__init__).parameters.values())[1:]  # type: ignore[misc]


def keeps_arguments(module: nn.Module) -> bool:
    """Return whether this is a whole model of neuralop or PhysicsNeMo, which store their arguments."""
    return hasattr(module, "_init_kwargs") or hasattr(module, "_args") or any(cls in KEPT for cls in type(module).__mro__)


def names_of_arguments(cls: type, kinds: Collection = _NAMED, rest: Any = inspect.Parameter.VAR_KEYWORD) -> list[str]:
    """Return the names of a class's constructor arguments, including those of bases that ``**kwargs`` (``rest``) reaches."""
    names: list[str] = []
    for base in cls.__mro__:
        # Use the class, not vars(base): SFNO's constructor is a partialmethod.
        if "__init__" in vars(base):
            parameters = _parameters(base)
            names += [p.name for p in parameters if p.kind in kinds and p.name not in names]
            if not any(p.kind is rest for p in parameters):
                break
    return names
