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

from neuralop_mup.core.plan import Row
from neuralop_mup.errors import MupError

__all__ = [
    "LETTERS",
    "as_blocks",
    "block_scale",
    "block_shape",
    "fourier_depth",
    "is_paired",
    "layout_of",
    "matrix_layouts",
    "order",
    "turn",
]

# A layout has one letter an axis, after the trailing pair of a real-stored complex tensor was made one number:
#   l  numbers kernels that share a tensor (joint weights): nothing is shared between them
#   c  channels that do not mix (separable kernels), so that each is a block of its own
#   b  modes, each of them a block
#   i  is summed over
#   o  is produced
LETTERS = "lcbio"
_LETTER_OF = {"fixed": "l", "in": "i", "in_fixed": "i", "rank_in": "i", "out": "o", "out_fixed": "o", "rank_out": "o"}


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
    if "pair" in axes:
        if axes.index("pair") != len(axes) - 1 or parameter.shape[-1] != 2 or parameter.is_complex():
            raise MupError(
                f"{row.name!r} {tuple(parameter.shape)} stores complex numbers in a layout that MuMuon and MuSOAP cannot "
                f"read (axes {axes}): pairs of real numbers must lie on the last axis, of size 2; or train it with MuAdam."
            )
        axes = axes[:-1]
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
    owners = {row.owner for row in rows.values() if row.role == "spectral" and not row.place.beside}
    return max(1, sum(getattr(model.get_submodule(owner), "n_layers", 1) for owner in owners))


def is_paired(p: torch.Tensor, layout: str) -> bool:
    """Whether complex numbers are stored as pairs of real ones."""
    return p.ndim == len(layout) + 1


@cache
def order(layout: str, letters: str) -> tuple[int, ...]:
    """Axes of a tensor sorted by their letters, in the given order of letters."""
    return tuple(axis for letter in letters for axis, own in enumerate(layout) if own == letter)


def as_blocks(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The tensor with blocks first: (*l, *c, *b, *i, *o), a view; complex where pairs were stored."""
    if is_paired(x, layout):
        x = torch.view_as_complex(x)
    return x.permute(*order(layout, LETTERS))


def turn(x: torch.Tensor, layout: str, letters: str, period: int, step: int) -> tuple[tuple[slice, ...], int]:
    """Which blocks move at a step: an index into the axes of these ``letters``, and in how many steps all have moved.

    Every ``period``-th along the axis that has most blocks, another comb at each step.
    """
    sizes = [x.shape[axis] for axis in order(layout, letters)]
    if not sizes:
        return (), 1
    axis = sizes.index(max(sizes))
    period = min(period, sizes[axis])
    return (slice(None),) * axis + (slice(step % period, None, period),), period


def block_shape(x: torch.Tensor, layout: str) -> tuple[int, int]:
    """Sizes (in, out) of one block."""
    shape = x.shape
    return prod([shape[axis] for axis in order(layout, "i")]), prod([shape[axis] for axis in order(layout, "o")])


def block_scale(x: torch.Tensor, layout: str) -> float:
    """√(out/in): the operator norm, between vectors measured by their root mean square, is then 1."""
    n_in, n_out = block_shape(x, layout)
    return sqrt(n_out / n_in)
