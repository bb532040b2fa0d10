"""The base of a model: built again from its parts, given as a model or a function, or read from a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from neuralop_mup.core.infshape import load_shapes
from neuralop_mup.core.parts import (
    Part,
    check_overrides,
    check_same_choices,
    construct,
    constructor_arguments,
    is_reference,
    keeps_arguments,
    reference_sizes,
)
from neuralop_mup.core.reading import ParameterInfo, read
from neuralop_mup.errors import MupError


@dataclass(frozen=True)
class Base:
    """What is known of a base.

    Attributes
    ----------
    shapes : mapping of str to tuple
        Logical shapes of its parameters, by their names there; in a file None stands for a dimension that never grows.
    found : mapping of str to ParameterInfo
        What its parameters are; empty where it is a file.
    source : str
        What it is, in words.
    is_reference : bool
        Whether it has the reference size.
    knows_active_modes : bool
        Whether shapes are those of the active modes: mup's files have those of tensors.
    """

    shapes: Mapping[str, tuple]
    found: Mapping[str, ParameterInfo]
    source: str
    is_reference: bool = False
    knows_active_modes: bool = True


def read_base(model: nn.Module, found: Mapping[str, ParameterInfo], parts: list[Part], base: Any) -> Base:
    """Build the base, if it has to be, and read it.

    Parameters
    ----------
    model : torch.nn.Module
        The bare model.
    found : mapping
        What :func:`~neuralop_mup.core.reading.read` found in it.
    parts : list of Part
        Its parts.
    base : mapping, torch.nn.Module, callable, path or None
        As for :func:`neuralop_mup.parametrize`.

    Raises
    ------
    MupError
        If it cannot be built or read, or differs from the model in more than sizes.
    """
    if isinstance(base, (str, os.PathLike)):
        shapes, ours = load_shapes(base)
        return Base(shapes, {}, repr(os.fspath(base)), knows_active_modes=ours)
    if base is None or isinstance(base, Mapping):
        overrides = [reference_sizes(part) if base is None else check_overrides(part, base) for part in parts]
        infos = _read_parts(found, parts, overrides)
        sizes = [{**part.arguments, **own} for part, own in zip(parts, overrides, strict=True)]
        source = ("the reference size: " if base is None else "") + _in_words(overrides)
    else:
        whole = _given(model, base)
        infos, source, inside = read(whole), "the base model", dict(whole.named_modules())
        sizes = [constructor_arguments(inside.get(part.name)) or {} for part in parts]
    at_reference = bool(parts) and all(map(is_reference, parts, sizes))
    return Base({name: info.shape for name, info in infos.items()}, infos, source, at_reference)


def _read_parts(
    found: Mapping[str, ParameterInfo], parts: list[Part], overrides: Iterable[Mapping]
) -> dict[str, ParameterInfo]:
    """The base whose parts are built with overrides; what lies outside of them is as in the model."""
    infos = dict(found)
    for part, own in zip(parts, overrides, strict=True):
        infos = {name: info for name, info in infos.items() if not name.startswith(part.prefix)}
        infos |= {part.prefix + name: info for name, info in read(part.built(**own)).items()}
    return infos


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
    at_base = dict(base.named_modules()) if isinstance(base, nn.Module) else {}
    for name, part in model.named_modules():
        if keeps_arguments(part) and name in at_base:
            check_same_choices(part, at_base[name], f" in {name!r}" if name else "")
    return base
