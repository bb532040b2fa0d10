"""Extend mup's base shapes with Fourier-mode dimensions and multipliers.

``mup.MuAdam`` and ``mup.MuSGD`` call three methods of a parameter's ``infshape``. ``ninf()`` returns one of mup's three
classes. ``width_mult()`` and ``fanin_fanout_mult_ratio()`` return divisors of the learning rate. :class:`MupShape` returns
values that make mup's optimizers use this package's learning rates. mup's own values would be wrong, because neuralop stores
kernels as (in, out, …) and modes are not widths.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mup.infshape import InfDim, InfShape
from mup.shape import load_base_shapes as _mup_load
from mup.shape import save_base_shapes as _mup_save

from neuralop_mup.errors import MupError
from neuralop_mup.files import replace_file

# Kinds of axes. Channel axes grow with width and mode axes grow with n_modes. Rank axes grow with both. ``fixed`` axes have
# the same size in the base model. A factor of a factorized kernel sums over ``rank_in`` axes and produces ``rank_out`` axes.
# ``modes`` axes store both signs of each mode. ``modes_half`` axes (the last axis of a real transform) store n_modes // 2 +
# 1 entries. ``modes_single`` axes store one sign of each mode, i.e. K entries (spherical degrees, quadrants of the
# legacy convolution). ``pair`` axes hold the real and imaginary parts of complex numbers that are stored as real numbers.
GROWS = ("in", "out", "rank_in", "rank_out", "modes", "modes_half", "modes_single")
AXES = (*GROWS, "in_fixed", "out_fixed", "fixed", "pair")


class MupShape(InfShape):
    """An ``InfShape`` that stores the kinds of its axes and the multipliers of its parameter.

    Parameters
    ----------
    axes : sequence of str
        Kind of each dimension, one of :data:`AXES`.
    shape, base_shape : sequence of int
        Sizes in this model and in the base model. The size of a mode axis is the number of *active* modes, which may be
        smaller than in the tensor if ``max_n_modes`` is used.
    adam_lr, sgd_lr : float
        Learning-rate multipliers for Adam-like optimizers and for SGD.
    of : int
        Number of trainable parameters that an optimizer must contain in order to be compared with the plan.
    frozen : bool
        Whether the layer's constructor freezes this parameter.
    divisor : float
        Divisor in the forward pass of mup's readout, which is ``width_mult()`` of this shape. 1 for all other parameters.
    """

    def __new__(cls, axes: Sequence[str], shape: Sequence[int], base_shape: Sequence[int], *_: float):
        dims = [InfDim(b if kind in GROWS else None, s) for kind, s, b in zip(axes, shape, base_shape, strict=True)]
        return super().__new__(cls, dims)

    def __init__(
        self,
        axes: Sequence[str],
        shape: Sequence[int],
        base_shape: Sequence[int],
        adam_lr: float = 1.0,
        sgd_lr: float = 1.0,
        of: int = 1,
        frozen: bool = False,
        divisor: float = 1.0,
    ) -> None:
        InfShape.__init__(self, self)  # InfShape passes its first argument to tuple.__init__
        self.axes, self.adam_lr, self.sgd_lr, self.of = tuple(axes), adam_lr, sgd_lr, of
        self.frozen, self.divisor = frozen, divisor

    def ninf(self) -> int:
        """Return mup's class of the parameter: 2 ("matrix-like"), 1 ("vector-like") or 0 ("fixed").

        For class 2, both optimizers divide the learning rate, and for class 0, neither does. Class 1 is only returned for
        mup's readouts: MuAdam keeps their learning rate and MuSGD multiplies it. For all other vector-like parameters, class
        2 with the two ratios below gives the correct learning rates.
        """
        if self.divisor != 1:
            return 1
        return 0 if self.adam_lr == self.sgd_lr == 1 else 2

    def width_mult(self) -> float:
        """Return the divisor of the learning rate in ``mup.MuAdam``, or of the input of mup's readouts."""
        return 1 / self.adam_lr if self.divisor == 1 else self.divisor

    def fanin_fanout_mult_ratio(self) -> float:
        """Return the divisor of the learning rate in ``mup.MuSGD``."""
        return 1 / self.sgd_lr

    def __reduce__(self):
        base = [d.dim if d.base_dim is None else d.base_dim for d in self]
        return MupShape, (self.axes, self.shape(), base, self.adam_lr, self.sgd_lr, self.of, self.frozen, self.divisor)


_MARK = "# Written by neuralop_mup: mode dimensions are the active modes.\n"


def save_shapes(shapes: Mapping[str, MupShape], path: str | os.PathLike) -> None:
    """Write a base-shape file in mup's format (YAML with one line per dimension, ``null`` if fixed)."""
    with replace_file(path, "base shapes") as part:
        _mup_save(dict(shapes), os.fspath(part))
        part.write_text(_MARK + part.read_text())


def load_shapes(path: str | os.PathLike) -> tuple[dict[str, list[int | None]], bool]:
    """Read a base-shape file written by :func:`save_shapes` or by mup.

    Returns
    -------
    dict of str to list
        Base sizes of the dimensions of each parameter, with ``None`` for fixed dimensions.
    bool
        Whether this package wrote the file. For mode dimensions, this package stores the number of active modes, whereas mup
        stores the size of the tensor.

    Raises
    ------
    MupError
        If the file is missing or empty, or does not map names to lists of sizes.
    """
    name = os.fspath(path)
    try:
        shapes = {key: shape.base_shape() for key, shape in _mup_load(name).items()}
        ours = Path(name).read_text().startswith(_MARK)
    except OSError as error:
        raise MupError(f"Cannot read the base-shape file {name!r}: {error.strerror}.") from error
    except Exception as error:  # the errors of yaml and mup share no base class
        raise MupError(
            f"{name!r} is not a base-shape file: it is empty, truncated or in a different format. Write a base-shape file "
            "with neuralop_mup.save_base_shapes(model, path)."
        ) from error
    sizes = [size for dims in shapes.values() for size in dims if size is not None]
    wrong = any(isinstance(size, bool) or not isinstance(size, int) or size < 0 for size in sizes)
    if wrong or not shapes or not all(isinstance(key, str) for key in shapes):
        raise MupError(
            f"{name!r} does not contain valid base shapes: each dimension must be a nonnegative integer or null. Write the "
            "file with neuralop_mup.save_base_shapes(model, path)."
        )
    return shapes, ours
