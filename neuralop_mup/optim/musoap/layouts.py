"""Which parameters are matrices, mode by mode, and how their tensors are read as batches of matrices.

The plan gives the kind of each axis. Kernels and the factors of factorized kernels sum over ``in`` and ``rank_in`` axes
and produce ``out`` and ``rank_out`` axes; every other axis (modes, joint weights) numbers independent blocks. Without an
axis to sum over and outside a factorization, channels do not mix (a separable kernel): each entry is a block by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

import torch
from torch import nn

from neuralop_mup.core import depth
from neuralop_mup.core.plan import Row
from neuralop_mup.errors import MupError
from neuralop_mup.optim.binding import Binding

__all__ = ["LETTERS", "PAIR", "Axes", "axes_of", "block_shape", "fourier_depth", "layout_of", "matrix_layouts"]

# A layout has one letter an axis:
#   l  numbers kernels that share a tensor (joint weights): nothing is shared between them
#   c  channels that do not mix (separable kernels), so that each is a block of its own
#   b  modes, each of them a block
#   i  is summed over
#   o  is produced
#   p  holds the real and the imaginary part
LETTERS = "lcbiop"
PAIR = "p"
_LETTER_OF = {
    "pair": "p",
    "fixed": "l",
    "in": "i",
    "in_fixed": "i",
    "rank_in": "i",
    "out": "o",
    "out_fixed": "o",
    "rank_out": "o",
}


class Axes(NamedTuple):
    """A parameter's axes, but for that of pairs, in the order in which a batch of blocks has them."""

    layers: tuple[int, ...]
    mixed: tuple[int, ...]  # those of a block, the smaller ones first, so that layers from a to b and b to a are alike
    channels: tuple[int, ...]
    modes: tuple[int, ...]

    @property
    def order(self) -> tuple[int, ...]:
        """All of them."""
        return self.layers + self.mixed + self.channels + self.modes

    def of_a_mode(self, sizes: Mapping[int, int]) -> dict[int, int]:
        """Sizes by axis of a tensor that has one number for each mode."""
        return {axis: 1 if axis in self.mixed else size for axis, size in sizes.items()}


def axes_of(x: torch.Tensor, layout: str) -> Axes:
    """The axes of a parameter."""
    found = {letter: tuple(axis for axis, own in enumerate(layout) if own == letter) for letter in "lcb"}
    mixed = sorted((size, letter, axis) for axis, (size, letter) in enumerate(zip(x.shape, layout, strict=True)))
    return Axes(found["l"], tuple(axis for _, letter, axis in mixed if letter in "io"), found["c"], found["b"])


def block_shape(x: torch.Tensor, layout: str) -> tuple[int, int]:
    """Sizes (in, out) of one block."""
    n_in, n_out = (prod([n for n, own in zip(x.shape, layout, strict=True) if own == letter]) for letter in "io")
    return n_in, n_out


def layout_of(row: Row, parameter: torch.Tensor) -> str:
    """Letters of a Fourier kernel, or of one of its factors.

    Raises
    ------
    MupError
        If the tensor is not of the plan's shape, or is complex in a way that is not known.
    """
    axes = row.axes
    if len(axes) != parameter.ndim:
        raise MupError(
            f"{row.name!r} has shape {tuple(parameter.shape)}, but the plan knows it with axes {axes}: it changed after "
            "parametrize; parametrize the finished model."
        )
    if axes.count("pair") > 1 or ("pair" in axes and (parameter.shape[axes.index("pair")] != 2 or parameter.is_complex())):
        raise MupError(
            f"{row.name!r} {tuple(parameter.shape)} stores complex numbers in a layout that MuSOAP cannot read (axes "
            f"{axes}): pairs of real numbers must lie on one axis, of size 2; or train it with MuAdam."
        )
    letters = "".join(_LETTER_OF.get(kind, "b") for kind in axes)
    mixes = "i" in letters or any(kind.startswith("rank") for kind in axes)
    return letters if mixes else letters.replace("o", "c")


def matrix_layouts(binding: Binding) -> dict[str, str]:
    """Layouts by name of all parameters whose updates are matrices.

    Kernels with their factors, and hidden linear layers: also as 1×1 convolutions from width to width. Convolutions
    with a stencil or with groups are no single matrix and are left to AdamW.
    """
    layouts = {}
    for row in binding.plan.rows:
        p = binding.parameters[row.name]
        if row.role == "spectral":
            layout = layout_of(row, p)
            if layout.strip("o"):  # the weights of a CP kernel's terms are a vector, no matrix
                layouts[row.name] = layout
        elif row.role == "hidden" and p.ndim >= 2 and prod(p.shape[2:]) == 1 and not _has_groups(binding.model, row.name):
            layouts[row.name] = layout_of(row, p)
    return layouts


def _has_groups(model: nn.Module, name: str) -> bool:
    return getattr(model.get_submodule(name.rpartition(".")[0]), "groups", 1) != 1


def fourier_depth(binding: Binding) -> int:
    """Number of Fourier layers that follow each other."""
    return depth.fourier_depth(binding.model, {row.owner for row in binding.plan.rows if row.role == "spectral"})
