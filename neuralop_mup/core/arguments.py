"""Recover the constructor arguments of a model: from its attributes, or from its shapes."""

import inspect
import itertools
import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from numbers import Real
from typing import Any

from torch import nn

# Functions that return the arguments of models that store them under other names.
KEPT: dict[type, Callable[[Any], dict[str, Any]]] = {}
_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
_NAMED = (_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)
_MOST = 128  # builds that a search may take: about a second


def constructor_arguments(model: nn.Module) -> dict[str, Any] | None:
    """Return the arguments that built ``model``, by name, or None if it does not store them.

    neuralop's BaseModel and PhysicsNeMo's Module store them. For other classes they are the attributes with the same names
    (``self.hidden_channels = hidden_channels``).
    """
    arguments = _kept_arguments(model)
    # Arrays and numbers of NumPy are compared with sizes, which are lists and ints.
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
    """Return whether :func:`constructor_arguments` are all stored, with no default in place of an unknown value."""
    return keeps_arguments(model) or {p.name for p in _parameters(type(model))} <= _stored(model).keys()


def _stored(model: nn.Module) -> dict[str, Any]:
    """Return attributes, and children and buffers with the name of an argument.

    A child may have the name of an argument with a default, so there it does not count.
    """
    given = {**dict(model.named_children()), **dict(model.named_buffers(recurse=False))}
    kept = next((KEPT[cls](model) for cls in type(model).__mro__ if cls in KEPT), {})
    return {**{name: given[name] for name in given.keys() - defaults_of(type(model))}, **vars(model), **kept}


def _parameters(cls: type) -> list[inspect.Parameter]:
    return list(inspect.signature(cls.__init__).parameters.values())[1:]  # type: ignore[misc]


def defaults_of(cls: type) -> dict[str, Any]:
    """Return the constructor's defaults by argument, where there are any."""
    return {p.name: p.default for p in _parameters(cls) if p.default is not p.empty}


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


def is_size(value: object) -> bool:
    """Whether it is a number or a sequence of numbers; a choice (a string, a flag, None, a function) is not."""
    if isinstance(value, (list, tuple)):
        return all(map(is_size, value))
    return isinstance(value, Real) and not isinstance(value, bool)


def each(value: Any, to: Callable[[Any], Any]) -> Any:
    """Apply a function to a number, or to each number in a list or tuple."""
    return type(value)([each(item, to) for item in value]) if isinstance(value, (list, tuple)) else to(value)


def plain_attributes(module: nn.Module) -> dict[str, Any]:
    """Attributes of a module that are numbers, strings, flags, None, or sequences of such; not ``training``."""

    def is_plain(value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return all(map(is_plain, value))
        return value is None or isinstance(value, (bool, int, float, str))

    return {key: value for key, value in vars(module).items() if key != "training" and is_plain(value)}


def code_of(function: Any) -> Any:
    """Return what a function does, as far as it can be compared: its code and bound arguments, or its name."""
    if isinstance(function, partial):
        return code_of(function.func), function.args, tuple(sorted(function.keywords.items()))
    return getattr(function, "__code__", getattr(function, "__qualname__", type(function)))


def traits(module: nn.Module) -> dict[str, Any]:
    """Plain attributes, and one entry with the code of functions and the types of children."""
    functions = {key: code_of(value) for key, value in vars(module).items() if callable(value)}
    return {**plain_attributes(module), "": (functions, [*map(type, module.modules())])}


def _stem(name: str) -> str:
    """``modes`` of ``_modes``, ``modes1`` and ``n_modes``."""
    return name.strip("_0123456789").removeprefix("n_").removeprefix("num_")


def solve_arguments(module: nn.Module, build: Callable[[Mapping[str, Any]], nn.Module | None]) -> list[dict[str, Any]]:
    """Return all constructor arguments that give a module its shapes.

    An argument that the module keeps, under its name or a similar one (``modes1`` for ``modes``), has that value. Others are
    searched for among their default and the whole numbers that the module's shapes and attributes contain.

    Parameters
    ----------
    module : torch.nn.Module
        The module as it was constructed.
    build : callable
        Function of arguments that returns such a module, on the meta device, or None where the constructor refuses them.

    Returns
    -------
    list of dict
        Arguments with which the shapes of all parameters and the :func:`traits` are the module's. Empty if there are none,
        or more than 128 combinations to try.
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
