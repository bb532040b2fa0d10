"""Models that can be built again, from whatever they keep of their constructor's arguments.

A *part* is a model, or a model inside of another, that keeps its arguments and says by one of them how wide it is. The base
and probes of other sizes are built from it, on the meta device.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cached_property, partial
from numbers import Real
from typing import Any

import torch
from torch import nn

from neuralop_mup.errors import MupError, nearest

# The reference size, at which default learning rates are meant.
WIDTH = 32
MODES = 16
# What models call their width and their modes: neuralop's (GINO's begin with fno_), then PhysicsNeMo's, then usual names.
WIDTHS = (
    "hidden_channels",
    "fno_hidden_channels",
    "hidden_variable_codimension",
    "latent_channels",
    "embed_dim",
    "hidden_dim",
    "width",
)
# In proportion to the width, where they are not 1.
_FURTHER_WIDTHS = ("uno_out_channels", "attention_token_dim")
_MODES = ("n_modes", "fno_n_modes", "max_n_modes", "fno_max_n_modes", "uno_n_modes", "num_fno_modes", "modes")
_DATA = ("in_channels", "out_channels", "fno_in_channels", "in_channel", "out_channel")


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
        """A model of the same class from its arguments and overrides, on the meta device if it can be."""

        def build() -> nn.Module:
            # Lists are copied: GINO appends to those it is given, which are the model's own (and in its checkpoints).
            return type(self.model)(**{key: _copied(value) for key, value in {**self.arguments, **overrides}.items()})

        return construct(build, f"{type(self.model).__name__} with {overrides}")

    @cached_property
    def changed(self) -> str | None:
        """What the arguments give otherwise than the model has it now; None if they describe it."""
        try:
            again = sizes_of(self.built())
        except MupError as error:
            return str(error)
        now = sizes_of(self.model)
        return next((name for name in {**now, **again} if now.get(name) != again.get(name)), None)


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


def find_parts(model: nn.Module, kernels: Iterable[str], base: Any) -> list[Part]:
    """The outermost models that hold kernels, keep their arguments and say how wide they are; it may be the model itself."""
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
        raise MupError(what_to_give(model, base))
    return parts


def what_to_give(model: nn.Module, base: Mapping | None) -> str:
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
        raise MupError(what_to_give(model, None))
    return reference_sizes(part)


def _each(value: Any, to: Callable[[Any], Any]) -> Any:
    """Another number in place of a number, or of each in a list or tuple."""
    return type(value)([_each(item, to) for item in value]) if isinstance(value, (list, tuple)) else to(value)


def is_reference(part: Part, sizes: Mapping[str, Any]) -> bool:
    return part.is_wide and all(_numbers(sizes.get(key)) == _numbers(value) for key, value in reference_sizes(part).items())


def _numbers(value: Any) -> Any:
    """Tuples and lists alike."""
    return [_numbers(item) for item in value] if isinstance(value, (list, tuple)) else value


def probe(parts: Iterable[Part]) -> dict[str, dict[str, torch.Size]]:
    """Shapes of all parameters where a part is twice as wide, and where it has twice as many modes, by what was doubled."""
    return {
        f"{part.name or type(part.model).__name__} of twice the {what}": _probe(part, keys)
        for part in parts
        if part.is_wide
        for what, keys in (("width", (*WIDTHS, *_FURTHER_WIDTHS)), ("modes", _MODES))
        if any(part.arguments.get(key) is not None for key in keys)
    }


def _probe(part: Part, names: Iterable[str]) -> dict[str, torch.Size]:
    """With these sizes doubled; tripled if a layer is left out then, as GNOBlock does with one of its ends' width."""
    own = [name for name, _ in part.model.named_parameters()]
    for factor in (2, 3):
        sizes = {name: _times(part.arguments[name], factor, name) for name in names if part.arguments.get(name) is not None}
        shapes = {name: tensor.shape for name, tensor in part.built(**sizes).named_parameters()}
        if list(shapes) == own:
            break
    return {part.prefix + name: shape for name, shape in shapes.items()}


def _times(value: Any, factor: int, name: str) -> Any:
    """A size as many times as large; a token of one channel is no width."""
    return _each(value, lambda n: n if name in _FURTHER_WIDTHS and n == 1 else n * factor)


def check_overrides(part: Part, overrides: Mapping[str, Any]) -> dict[str, Any]:
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


def check_same_choices(part: nn.Module, at_base: nn.Module, where: str) -> None:
    """Refuse another choice, or another size of the data, in what two models keep of their arguments."""
    ours, theirs = constructor_arguments(part) or {}, constructor_arguments(at_base) or {}
    for key in ours.keys() & theirs.keys():
        is_size = key not in _DATA and _is_size(ours[key]) and _is_size(theirs[key])
        if not is_size and not isinstance(ours[key], nn.Module):
            _check_equal(key, theirs[key], ours[key], where)


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


def active_modes(conv: Any) -> tuple[int, ...]:
    """What a convolution says of its active modes, cheap enough to ask at every step."""
    return (*conv.n_modes, *getattr(conv, "half_n_modes", ()))


@dataclass(frozen=True)
class Built:
    """A base that was built, whole or in parts: by the prefix of each part's parameters, and what it is, in words."""

    models: Mapping[str, nn.Module]
    source: str
    is_reference: bool


def build_base(model: nn.Module, parts: list[Part], base: Any) -> Built:
    """The base from constructor overrides, or as a model or a function gives it.

    Raises
    ------
    MupError
        If it cannot be built, or differs from the model in more than sizes.
    """
    if base is None or isinstance(base, Mapping):
        overrides = [reference_sizes(part) if base is None else check_overrides(part, base) for part in parts]
        models = {part.prefix: part.built(**own) for part, own in zip(parts, overrides, strict=True)}
        sizes = [{**part.arguments, **own} for part, own in zip(parts, overrides, strict=True)]
        source = ("the reference size: " if base is None else "") + _in_words(overrides)
    else:
        models, source = {"": _given(model, base)}, "the base model"
        inside = dict(models[""].named_modules())
        sizes = [constructor_arguments(inside.get(part.name)) or {} for part in parts]
    return Built(models, source, bool(parts) and all(map(is_reference, parts, sizes)))


def _in_words(overrides: Iterable[Mapping[str, Any]]) -> str:
    sizes = dict.fromkeys(f"{key} = {value}" for own in overrides for key, value in own.items())
    return ", ".join(sizes) or "the model's own size"


def _given(model: nn.Module, base: Any) -> nn.Module:
    """A base that is a model or a function that builds one, of the same architecture."""
    if not isinstance(base, nn.Module):
        if not callable(base):
            raise MupError(
                f"base is a {type(base).__name__}; give constructor overrides such as {{'hidden_channels': 32}}, a base "
                "model or a function that returns one, or the path of a base-shape file."
            )
        base = construct(base, "The base function")
    if not isinstance(base, nn.Module):
        raise MupError(f"Expected a torch.nn.Module, got {type(base).__name__}: give a function that returns a model.")
    at_base = dict(base.named_modules())
    for name, part in model.named_modules():
        if keeps_arguments(part) and name in at_base:
            check_same_choices(part, at_base[name], f" in {name!r}" if name else "")
    return base
