"""How a model was built: its constructor's arguments, from whatever it keeps of them, and models built from them again."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.modes import active_modes
from neuralop_mup.errors import MupError

_KEPT: dict[type, Callable[[Any], dict[str, Any]]] = {}
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def keeps(model_type: type) -> Callable:
    """Decorator for a function that reads constructor arguments off a model which keeps them under other names."""

    def register(function: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
        _KEPT[model_type] = function
        return function

    return register


def constructor_arguments(model: nn.Module | None) -> dict[str, Any] | None:
    """Arguments of the call that built ``model``, by name; None where it keeps too little.

    neuralop's BaseModel and PhysicsNeMo's Module store them; of other classes they are the attributes of the same names
    (``self.hidden_channels = hidden_channels``).
    """
    stored = getattr(model, "_init_kwargs", None)
    if stored is not None:
        positional = dict(zip(_positional_arguments(type(model)), stored.get("args", ()), strict=False))
        return {**{k: v for k, v in stored.items() if k not in ("args", "_name", "_version")}, **positional}
    theirs = getattr(model, "_args", None)
    if isinstance(theirs, dict) and "__args__" in theirs:
        return dict(theirs["__args__"])
    return None if model is None else _from_attributes(model)


def keeps_arguments(module: nn.Module) -> bool:
    """Whether this is a whole model of neuralop or PhysicsNeMo, which are known by what they keep."""
    return hasattr(module, "_init_kwargs") or hasattr(module, "_args") or any(cls in _KEPT for cls in type(module).__mro__)


def _from_attributes(model: nn.Module) -> dict[str, Any] | None:
    known = next((_KEPT[cls](model) for cls in type(model).__mro__ if cls in _KEPT), {})
    arguments: dict[str, Any] = {}
    for parameter in list(inspect.signature(type(model).__init__).parameters.values())[1:]:
        missing = parameter.default
        value = known.get(parameter.name, vars(model).get(parameter.name, missing))
        if parameter.kind not in _NAMED or value is inspect.Parameter.empty:
            return None
        arguments[parameter.name] = value
    return arguments or None


def _positional_arguments(cls: type) -> list[str]:
    """Names of positional arguments of a class; ``*args`` are handed on to the next class that has a constructor."""
    names: list[str] = []
    for parameters in _signatures(cls):
        names += [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        if not any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
            break
    return names


def names_of_arguments(cls: type) -> list[str]:
    """Named constructor arguments of a class, and those of its bases as far as ``**kwargs`` hands them on."""
    names: list[str] = []
    for parameters in _signatures(cls):
        names += [p.name for p in parameters if p.kind in _NAMED and p.name not in names]
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
            break
    return names


def _signatures(cls: type) -> list[list[inspect.Parameter]]:
    # Not out of vars(base): SFNO's constructor is a partialmethod, which only its class makes a function.
    bases = [base for base in cls.__mro__ if "__init__" in vars(base)]
    return [list(inspect.signature(base.__init__).parameters.values())[1:] for base in bases]  # type: ignore[misc]


def rebuild(model: nn.Module, arguments: Mapping[str, Any], overrides: Mapping[str, Any]) -> nn.Module:
    """A model of the same class from its arguments and overrides, on the meta device if it can be."""

    def build() -> nn.Module:
        # Lists are copied: GINO appends to those it is given, which are the model's own (and in its checkpoints).
        return type(model)(**{key: _copied(value) for key, value in {**arguments, **overrides}.items()})

    return construct(build, f"{type(model).__name__} with {dict(overrides)}")


def _copied(value: Any) -> Any:
    return [_copied(item) for item in value] if isinstance(value, list) else value


def construct(build: Callable[[], nn.Module], what: str) -> nn.Module:
    """Build on the meta device, where it costs no memory; on the CPU if the constructor needs real numbers.

    Random numbers of the caller are left as they were, also where ``build`` seeds them.

    Raises
    ------
    MupError
        With what the constructor raised.
    """
    with torch.random.fork_rng(devices=[]), redirect_stdout(io.StringIO()):  # UNO prints while it is built
        try:
            with torch.device("meta"):
                return build()
        except Exception:  # some constructors read tensors; if that is not the reason, the second try says what is
            pass
        try:
            return build()
        except Exception as error:  # whatever the constructor raises is the user's to read
            raise MupError(f"{what} cannot be built: {type(error).__name__}: {error}.") from error


def sizes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """All that a size can be read off: shapes of parameters, and the active modes of convolutions."""
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters(remove_duplicate=False)}
    convs = {f"{name}.n_modes": m for name, m in model.named_modules() if hasattr(m, "weight") and hasattr(m, "n_modes")}
    return {**shapes, **{name: active_modes(conv) for name, conv in convs.items()}}
