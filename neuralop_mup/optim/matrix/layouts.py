"""Which parameters are matrices, mode by mode, and how their tensors are read as batches of matrices.

The plan gives the kind of each axis. Kernels and the factors of factorized kernels sum over ``in`` and ``rank_in`` axes
and produce ``out`` and ``rank_out`` axes; every other axis (modes, joint weights) numbers independent blocks. Without an
axis to sum over and outside a factorization, channels do not mix (a separable kernel): each entry is a block by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import prod, sqrt

import torch
from torch import nn

from neuralop_mup.core.depth import fourier_depth as depth_of
from neuralop_mup.core.plan import Row
from neuralop_mup.errors import MupError

__all__ = [
    "LETTERS",
    "PAIR",
    "block_scale",
    "block_shape",
    "fourier_depth",
    "layout_of",
    "matrix_layouts",
    "order",
    "plain_layout",
    "plain_sizes",
]

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
            f"{row.name!r} {tuple(parameter.shape)} stores complex numbers in a layout that MuMuon and MuSOAP cannot "
            f"read (axes {axes}): pairs of real numbers must lie on one axis, of size 2; or train it with MuAdam."
        )
    letters = "".join(_LETTER_OF.get(kind, "b") for kind in axes)
    mixes = "i" in letters or any(kind.startswith("rank") for kind in axes)
    return letters if mixes else letters.replace("o", "c")


def matrix_layouts(model: nn.Module, rows: Mapping[str, Row]) -> dict[str, str]:
    """Layouts by name of all parameters whose updates are matrices.

    Kernels with their factors, and hidden linear layers: also as 1×1 convolutions from width to width. Convolutions
    with a stencil or with groups are no single matrix and are left to the auxiliary optimizer.
    """
    parameters, layouts = dict(model.named_parameters()), {}
    for name, row in rows.items():
        p = parameters[name]
        if row.role == "spectral":
            layout = layout_of(row, p)
            if layout.strip("o"):  # the weights of a CP kernel's terms are a vector, no matrix
                layouts[name] = layout
        elif row.role == "hidden" and p.ndim >= 2 and prod(p.shape[2:]) == 1 and not _has_groups(model, name):
            layouts[name] = layout_of(row, p)
    return layouts


def _has_groups(model: nn.Module, name: str) -> bool:
    return getattr(model.get_submodule(name.rpartition(".")[0]), "groups", 1) != 1


def fourier_depth(model: nn.Module, rows: Mapping[str, Row]) -> int:
    """Number of Fourier layers that follow each other: modules that hold kernels, but for those that stand beside another
    one (one that holds several layers counts them)."""
    return depth_of(model, {row.owner for row in rows.values() if row.role == "spectral"})


@cache
def order(layout: str, letters: str) -> tuple[int, ...]:
    """Axes of a tensor sorted by their letters, in the given order of letters."""
    return tuple(axis for letter in letters for axis, own in enumerate(layout) if own == letter)


def plain_layout(layout: str) -> str:
    """Letters of the axes that are left when complex numbers are one number each."""
    return layout.replace(PAIR, "")


def plain_sizes(x: torch.Tensor, layout: str) -> tuple[int, ...]:
    """Sizes of those axes."""
    return tuple(size for size, letter in zip(x.shape, layout, strict=True) if letter != PAIR)


def block_shape(x: torch.Tensor, layout: str) -> tuple[int, int]:
    """Sizes (in, out) of one block."""
    shape = x.shape
    return prod([shape[axis] for axis in order(layout, "i")]), prod([shape[axis] for axis in order(layout, "o")])


def block_scale(x: torch.Tensor, layout: str) -> float:
    """√(out/in): the operator norm, between vectors measured by their root mean square, is then 1."""
    n_in, n_out = block_shape(x, layout)
    return sqrt(n_out / n_in)
