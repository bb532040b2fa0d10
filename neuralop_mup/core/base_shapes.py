"""The base model: built from overrides, given, or read from a file; checked against the model."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.classify import ParameterInfo, active_modes, classify
from neuralop_mup.core.depth import Layers, match_layers
from neuralop_mup.core.infshape import GROWS, load_shapes
from neuralop_mup.core.registry import Place
from neuralop_mup.errors import MupError, nearest

__all__ = ["base_shapes", "build_base", "constructor_arguments"]


Shapes = dict[str, tuple[int, ...]]


def base_shapes(model: nn.Module, found: Mapping[str, ParameterInfo], base, rule: str) -> tuple[Shapes, dict[str, Layers]]:
    """Logical shape of every parameter at base, checked against the model's, and what it is the shape of."""
    if isinstance(base, (str, os.PathLike)):
        source = os.fspath(base)
        shapes, layers = _shapes_of_file(found, source, rule)
    else:
        source = "the base model"
        shapes, layers = _shapes_of_model(found, _base_model(model, base))
    _check_sizes(found, shapes, layers, source)
    _check_places(found, shapes)
    return shapes, layers


def _base_model(model: nn.Module, base: Any) -> nn.Module:
    """The base as a model of the same architecture, built if it is not one."""
    if isinstance(base, Mapping):
        built = build_base(model, base)
        _check_rebuilt(model, build_base(model, {}) if base else built)
        return built
    if not isinstance(base, nn.Module):
        if not callable(base):
            raise MupError(
                f"base is a {type(base).__name__}; give constructor overrides such as {{'hidden_channels': 32}}, a base "
                "model or a function that returns one, or the path of a base-shape file."
            )
        base = _construct(base, "The base function")
    _check_same_architecture(model, base)
    return base


def build_base(model: nn.Module, overrides: Mapping) -> nn.Module:
    """Build a model, on the meta device if it can be, from the stored constructor arguments of ``model`` and overrides.

    Raises
    ------
    MupError
        If the model keeps no constructor arguments, a key is not one of them, an override changes the architecture
        rather than a size, or the constructor refuses them.
    """
    cls = type(model)
    stored = constructor_arguments(model)
    if stored is None:
        raise MupError(
            f"{cls.__name__} keeps no constructor arguments, so a base cannot be built from overrides "
            f"{dict(overrides)}: pass a base model, a function that returns one (lambda: {cls.__name__}(…)), or a "
            "base-shape file."
        )
    names = _argument_names(cls)
    for key, value in overrides.items():
        if key not in names:
            raise MupError(f"base has the key {key!r}, which {cls.__name__} does not take: {nearest(str(key), names)}")
        if value != stored.get(key) and not (_is_size(value) and _is_size(stored.get(key))):
            raise MupError(
                f"base changes {key!r} from {stored.get(key)!r} to {value!r}, which is no size: base may differ from the "
                "model in width, modes and depth only, so that both are the same architecture."
            )
        if key.endswith("n_modes") and _length(value) != _length(stored.get(key)):  # the constructor may say so too late
            raise MupError(
                f"base gives {key} = {value!r}, and the model has {stored.get(key)!r}: give as many numbers, one for each "
                "axis."
            )

    def build() -> nn.Module:
        # Lists are copied: GINO appends to those it is given, which are the model's own (and in its checkpoints).
        return cls(**{k: list(v) if isinstance(v, list) else v for k, v in {**stored, **overrides}.items()})

    return _construct(build, f"{cls.__name__} at base {dict(overrides)}")


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, (list, tuple)) else None


def _construct(build: Callable[[], nn.Module], what: str) -> nn.Module:
    """Build on the meta device, where it costs no memory; on the CPU if the constructor needs real numbers."""
    try:
        with torch.device("meta"):
            return build()
    except Exception:  # some constructors read tensors; if that is not the reason, the second try says what is
        pass
    try:
        with torch.random.fork_rng(devices=[]):
            return build()
    except Exception as error:  # whatever the constructor raises is the user's to read
        raise MupError(f"{what} cannot be built: {type(error).__name__}: {error}.") from error


def constructor_arguments(model: nn.Module | None) -> dict | None:
    """What neuralop's BaseModel, or PhysicsNeMo's Module, stored of the call that built ``model``, all by name."""
    stored = getattr(model, "_init_kwargs", None)
    if stored is None:
        theirs = getattr(model, "_args", None)
        return dict(theirs["__args__"]) if isinstance(theirs, dict) and "__args__" in theirs else None
    positional = dict(zip(_argument_names(type(model)), stored.get("args", ()), strict=False))
    return {**{k: v for k, v in stored.items() if k not in ("args", "_name", "_version")}, **positional}


def _argument_names(cls: type) -> list[str]:
    """Named constructor arguments of a class, and those of its bases as far as ``**kwargs`` hands them on."""
    names: list[str] = []
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        # Not out of vars(base): SFNO's constructor is a partialmethod, which only its class makes a function.
        parameters = list(inspect.signature(base.__init__).parameters.values())[1:]  # type: ignore[misc]
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        names += [p.name for p in parameters if p.kind in named and p.name not in names]
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
            break
    return names


def _is_size(value: object) -> bool:
    """A number or a sequence of numbers; a choice (a string, a flag, None, a function) is not."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_size, value))
    return isinstance(value, Real) and not isinstance(value, bool)


def _check_rebuilt(model: nn.Module, again: nn.Module) -> None:
    """A base is built from constructor arguments, so they have to describe the model as it is now."""
    ours, theirs = _sizes(model), _sizes(again)
    if ours != theirs:
        changed = next(name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name))
        raise MupError(
            f"{type(model).__name__} was changed after it was constructed (its constructor arguments give another "
            f"{changed!r}), so a base cannot be built from overrides: pass a base model that was changed likewise."
        )


def _sizes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """All that a size can be read off: shapes of parameters, and the active modes of convolutions."""
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters(remove_duplicate=False)}
    convs = {f"{name}.n_modes": m for name, m in model.named_modules() if hasattr(m, "weight") and hasattr(m, "n_modes")}
    return {**shapes, **{name: active_modes(conv) for name, conv in convs.items()}}


def _check_same_architecture(model: nn.Module, base: nn.Module) -> None:
    """Arguments that are no sizes must agree where both models keep them, or the models that they are made of do."""
    at_base = dict(base.named_modules()) if isinstance(base, nn.Module) else {}
    for name, part in model.named_modules():
        ours, theirs = constructor_arguments(part) or {}, constructor_arguments(at_base.get(name)) or {}
        for key in ours.keys() & theirs.keys():
            a, b = ours[key], theirs[key]
            if a is b or isinstance(a, nn.Module) or (_is_size(a) and _is_size(b)):
                continue
            if type(a) is not type(b) or a != b:
                raise MupError(
                    f"The base model has {key} = {b!r} and the model {a!r}{f' in {name!r}' if name else ''}: base may "
                    "differ from the model in width, modes and depth only, so that both are the same architecture."
                )


def _shapes_of_model(found: Mapping[str, ParameterInfo], base: nn.Module) -> tuple[Shapes, dict[str, Layers]]:
    base_found = classify(base, trainable=False)
    layers = _matched(found, base_found)
    matching = {name: base_found[layers[name].at_base(name)] for name in found}
    for name, at_base in matching.items():
        f = found[name]
        if f.param.axes != at_base.param.axes or f.param.role != at_base.param.role:
            raise MupError(
                f"Parameter {name!r} is {f.param.role} {f.param.axes} in the model but {at_base.param.role} "
                f"{at_base.param.axes} at base: give a base of the same architecture."
            )
    return {name: at_base.shape for name, at_base in matching.items()}, layers


def _shapes_of_file(found: Mapping[str, ParameterInfo], path: str, rule: str) -> tuple[Shapes, dict[str, Layers]]:
    in_file, ours = load_shapes(path)
    layers = _matched(found, in_file)
    stored = {name: in_file[layers[name].at_base(name)] for name in found}
    modes_matter = rule not in ("none", "standard")
    for name, f in found.items():
        if f.param.shape not in (None, f.tensor_shape) and not ours:
            raise MupError(
                f"{path!r} was written by mup, which does not know that {name!r} uses only part of its modes "
                "(max_n_modes): save base shapes with neuralop_mup.save_base_shapes."
            )
        if len(stored[name]) != len(f.shape):
            raise MupError(
                f"{path!r} gives {name!r} {len(stored[name])} dimensions, the model's has {len(f.shape)}: "
                "give a file saved from a model of the same architecture."
            )
        for axis, b in zip(f.param.axes, stored[name], strict=True):
            if b is None and axis in GROWS and (modes_matter or not axis.startswith("modes")):
                raise MupError(
                    f"{path!r} gives no base size (null) for the {axis!r} dimension of {name!r}, so how much "
                    "the model grew is unknown: save base shapes with neuralop_mup.save_base_shapes(base_model, path)"
                    + (", or use rule='none'." if axis.startswith("modes") else ".")
                )
    # null is a dimension that is the same everywhere: it is the model's own size.
    shapes = {
        name: tuple(n if b is None else b for b, n in zip(stored[name], f.shape, strict=True)) for name, f in found.items()
    }
    return shapes, layers


def _matched(found: Mapping[str, ParameterInfo], base: Mapping) -> dict[str, Layers]:
    """What each parameter is compared with, where base has the same parameters but for its number of layers."""
    kernels = [name for name, f in found.items() if f.param.role == "spectral"]
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


def _check_sizes(found: Mapping[str, ParameterInfo], shapes: Shapes, layers: Mapping[str, Layers], source: str) -> None:
    for name, other in ((name, in_stack.last) for name, in_stack in layers.items()):
        if (found[name].shape, shapes[name]) != (found[other].shape, shapes[other]):
            raise MupError(
                f"In {source} there are fewer layers than in the model, and the layers are not alike: {name!r} is "
                f"{found[name].shape} (at base {shapes[name]}), {other!r} {found[other].shape} ({shapes[other]}). Which of "
                "them the further ones continue is not known: give a base of the same depth."
            )
    for name, f in found.items():
        for axis, n, b in zip(f.param.axes, f.shape, shapes[name], strict=True):
            if axis not in GROWS and n != b:
                raise MupError(
                    f"Parameter {name!r} is {f.shape} in the model and {shapes[name]} in {source}: they differ on an "
                    f"axis of kind {axis!r}, which neither width nor modes change. Give a base with the same in_channels, "
                    "out_channels, dimensions and fixed hidden channels (UNO's lifting_channels, a graph kernel's MLP, the "
                    "decoder_layer_size of PhysicsNeMo's FNO)."
                )


def _check_places(found: Mapping[str, ParameterInfo], shapes: Shapes) -> None:
    """Refuse channels that a registration of the user's says grow with width, where they cannot.

    One channel in the model and at base, while others grow, is a channel of the data. More than one that stay the same may
    be of a second width, which this base leaves as it is; not so where every matrix of the model is said to read (or
    write) channels that grow, so that the data would have none to come in (or go out) by.
    """
    channels = {
        name: [(kind, n, b) for kind, n, b in zip(f.param.axes, f.shape, shapes[name], strict=True) if kind in _ENDS]
        for name, f in found.items()
    }
    if all(n == b for axes in channels.values() for _, n, b in axes):
        return
    matrices = [f for f in found.values() if f.param.role != "vector"]
    fixed = {kind for kind, end in _ENDS.items() if any(end in f.param.axes for f in matrices)}
    for name, f in found.items():
        if f.declared is None:
            continue
        direct = f.declared.place is not None and f.owner == f.declared.name and f.param.role != "vector"
        if kept := {kind: n for kind, n, b in channels[name] if n == b and (n == 1 or (direct and kind not in fixed))}:
            kind, n = next(iter(kept.items()))
            remedy = f"write {_ENDS[kind]!r} for it"
            if (place := f.declared.place) is not None:
                right = Place(place.grows_in and "in" not in kept, place.grows_out and "out" not in kept)
                remedy = (
                    f"give {f.declared.name!r} Place({right.grows_in}, {right.grows_out}) (a class that stands in several "
                    "places is registered by a function of layer and place)"
                )
            raise MupError(
                f"By the registration of {f.declared.by} the axis {kind!r} of {name!r} grows with width, but it is {n} "
                f"in the model and at base, {'while others grow' if n == 1 else 'and then none is of the data'}: {remedy}."
            )


_ENDS = {"in": "in_fixed", "out": "out_fixed"}
