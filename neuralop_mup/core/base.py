"""The base of a model: built again from its parts, given as a model or a function, or read from a file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from neuralop_mup.core.infshape import load_shapes
from neuralop_mup.core.parts import Part, build_base
from neuralop_mup.core.reading import ParameterInfo, read


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

    shapes: Mapping[str, Sequence[int | None]]
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
    built = build_base(model, parts, base)
    # What lies outside of the parts that were built is as in the model.
    infos = {name: info for name, info in found.items() if not name.startswith(tuple(built.models))}
    for prefix, module in built.models.items():
        infos |= {prefix + name: info for name, info in read(module).items()}
    return Base({name: info.shape for name, info in infos.items()}, infos, built.source, built.is_reference)
