"""Recover the constructor arguments of a model from its attributes or its shapes."""

import inspect
import itertools
import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from numbers import Real
from typing import Any

from torch import nn

# Functions that return a model's arguments, for classes that store them under other names.
KEPT: dict[type, Callable[[Any], dict[str, Any]]] = {}
_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
_NAMED = (_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)
_MOST = 128  # largest number of models that a search may build, which takes about a second


def constructor_arguments(model: nn.Module) -> dict[str, Any] | None:
    """Return the constructor arguments of ``model`` by name, or None if it does not store them.

    neuralop's BaseModel and PhysicsNeMo's Module store them. For other classes, they are read from the attributes with the
    same names (``self.hidden_channels = hidden_channels``).
    """
    arguments = _kept_arguments(model)
    # Convert NumPy arrays and scalars, because they are compared with lists and ints.
    return arguments and {k: v.tolist() if type(v).__module__ == "numpy" else v for k, v in arguments.items()}


def _kept_arguments(model: nn.Module) -> dict[str, Any] | None:
    stored = getattr(model, "_init_kwargs", None)
    if stored is not None:
        names = names_of_arguments(type(model), (_POSITIONAL,), inspect.Parameter.VAR_POSITIONAL)
        positional = dict(zip(names, stored.get("args", ()), strict=False))
        return {**{k: v for k, v in stored.items() if k not in ("args", "_name", "_version")}, **positional}
    theirs = getattr(model, "_args", None)
    if isinstance(theirs, dict) and "__args__" in theirs:
        return dict(theirs["__args__"])
    known = {**defaults_of(type(model)), **_stored(model)}
    parameters = _parameters(type(model))
    is_complete = all(p.kind in _NAMED and p.name in known for p in parameters)
    return {p.name: known[p.name] for p in parameters} if parameters and is_complete else None


def keeps_all_arguments(model: nn.Module) -> bool:
    """Return whether the model stores the values of all its constructor arguments, so that no default is assumed."""
    return keeps_arguments(model) or {p.name for p in _parameters(type(model))} <= _stored(model).keys()


def _stored(model: nn.Module) -> dict[str, Any]:
    """Return a module's attributes, and its children and buffers that have the name of an argument.

    Children and buffers are only included for arguments without a default, because a child may happen to have the
    name of an optional argument.
    """
    given = {**dict(model.named_children()), **dict(model.named_buffers(recurse=False))}
    kept = next((KEPT[cls](model) for cls in type(model).__mro__ if cls in KEPT), {})
    return {**{name: given[name] for name in given.keys() - defaults_of(type(model))}, **vars(model), **kept}


def _parameters(cls: type) -> list[inspect.Parameter]:
    return list(inspect.signature(cls.__init__).parameters.values())[1:]  # type: ignore[misc]


def defaults_of(cls: type) -> dict[str, Any]:
    """Return the default values of the constructor's optional arguments."""
    return {p.name: p.default for p in _parameters(cls) if p.default is not p.empty}


def keeps_arguments(module: nn.Module) -> bool:
    """Return whether a module stores its arguments, as complete neuralop and PhysicsNeMo models do."""
    return hasattr(module, "_init_kwargs") or hasattr(module, "_args") or any(cls in KEPT for cls in type(module).__mro__)


def names_of_arguments(cls: type, kinds: Collection = _NAMED, rest: Any = inspect.Parameter.VAR_KEYWORD) -> list[str]:
    """Return the names of a class's constructor arguments, including those that ``rest`` (``**kwargs``) passes to bases."""
    names: list[str] = []
    for base in cls.__mro__:
        # _parameters reads the constructor from the class, not from vars(base), because SFNO's constructor is a
        # partialmethod.
        if "__init__" in vars(base):
            parameters = _parameters(base)
            names += [p.name for p in parameters if p.kind in kinds and p.name not in names]
            if not any(p.kind is rest for p in parameters):
                break
    return names


def is_size(value: object) -> bool:
    """Return whether a value is a number or a sequence of numbers, unlike strings, flags, None and functions."""
    if isinstance(value, (list, tuple)):
        return all(map(is_size, value))
    return isinstance(value, Real) and not isinstance(value, bool)


def each(value: Any, to: Callable[[Any], Any]) -> Any:
    """Apply a function to a number, or to every number in a list or tuple."""
    return type(value)([each(item, to) for item in value]) if isinstance(value, (list, tuple)) else to(value)


def plain_attributes(module: nn.Module) -> dict[str, Any]:
    """Return a module's attributes that are numbers, strings, flags, None or sequences of these, except ``training``."""

    def is_plain(value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return all(map(is_plain, value))
        return value is None or isinstance(value, (bool, int, float, str))

    return {key: value for key, value in vars(module).items() if key != "training" and is_plain(value)}


def code_of(function: Any) -> Any:
    """Return the code and bound arguments of a function, or its name, for comparison with another function."""
    if isinstance(function, partial):
        return code_of(function.func), function.args, tuple(sorted(function.keywords.items()))
    return getattr(function, "__code__", getattr(function, "__qualname__", type(function)))


def traits(module: nn.Module) -> dict[str, Any]:
    """Return a module's plain attributes, and one entry with the code of its functions and its submodules' types."""
    functions = {key: code_of(value) for key, value in vars(module).items() if callable(value)}
    return {**plain_attributes(module), "": (functions, [*map(type, module.modules())])}


def _stem(name: str) -> str:
    """Return the stem of a name, which is ``modes`` for ``_modes``, ``modes1`` and ``n_modes``."""
    return name.strip("_0123456789").removeprefix("n_").removeprefix("num_")


def solve_arguments(module: nn.Module, build: Callable[[Mapping[str, Any]], nn.Module | None]) -> list[dict[str, Any]]:
    """Return all combinations of constructor arguments that reproduce the shapes of a module.

    If the module stores an argument under its name or a similar name (``modes1`` for ``modes``), this value is used. For all
    other arguments, the candidates are the default and the integers that occur in the module's shapes and attributes.

    Parameters
    ----------
    module : torch.nn.Module
        The module, unchanged since its construction.
    build : callable
        Function that builds such a module on the meta device from a mapping of arguments. It returns None if the constructor
        rejects them.

    Returns
    -------
    list of dict
        Arguments that reproduce the shapes of all parameters and the :func:`traits` of the module. The list is empty if
        there are none, or if there are more than 128 combinations to try.
    """

    def fits(arguments: Mapping[str, Any]) -> bool:
        again = build(arguments)
        if again is None or {name: p.shape for name, p in again.named_parameters()} != shapes:
            return False
        theirs = traits(again)
        return all(theirs.get(key, value) == value for key, value in traits(module).items())

    own, shapes = plain_attributes(module), {name: p.shape for name, p in module.named_parameters()}
    kept, known = constructor_arguments(module), _stored(module)
    if kept is not None and fits(kept):
        return [kept]
    pools = {}
    sizes = sorted({n for shape in shapes.values() for n in shape} | {n for n in own.values() if type(n) is int})
    for p in _parameters(type(module)):
        if p.kind not in _NAMED:
            return []
        similar = [value for key, value in own.items() if _stem(key) == _stem(p.name)]
        default = [] if p.default is p.empty else [p.default]
        numbers = sizes if all(type(value) is int for value in default) else []
        pool = [known[p.name]] if p.name in known else similar or [*default, *numbers]
        pools[p.name] = [value for i, value in enumerate(pool) if not any(value is v or value == v for v in pool[:i])]
    if math.prod(map(len, pools.values())) > _MOST:
        return []
    candidates = (dict(zip(pools, values, strict=True)) for values in itertools.product(*pools.values()))
    return [arguments for arguments in candidates if fits(arguments)]
