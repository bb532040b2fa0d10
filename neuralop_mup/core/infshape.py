"""mup's base shapes, extended with Fourier-mode dimensions and roles.

``mup.MuAdam`` and ``mup.MuSGD`` call three methods of a parameter's ``infshape``: ``ninf()`` (one of mup's three classes),
``width_mult()`` and ``fanin_fanout_mult_ratio()`` (divisors of the learning rate). :class:`MupShape` returns values that
give mup's optimizers this package's learning rates. mup's own values would be wrong, because neuralop stores kernels as
(in, out, …) and modes are not widths.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mup.infshape import InfDim, InfShape
from mup.shape import load_base_shapes as _mup_load
from mup.shape import save_base_shapes as _mup_save

from neuralop_mup.errors import MupError
from neuralop_mup.files import replace_file

# Kinds of axes. Channels and ranks scale with width (ranks also with modes), modes with n_modes; ``fixed`` ones are equal at
# base. A factor of a factorized kernel sums over ``rank_in`` axes and produces ``rank_out`` axes. ``modes`` store both signs
# of each mode; ``modes_half`` (the last axis of a real transform) stores n_modes // 2 + 1 entries; ``modes_single`` stores
# one sign, K entries (spherical degrees, quadrants of the legacy convolution). ``pair`` holds the real and imaginary part of
# complex numbers that are stored as real ones.
GROWS = ("in", "out", "rank_in", "rank_out", "modes", "modes_half", "modes_single")
AXES = (*GROWS, "in_fixed", "out_fixed", "fixed", "pair")


class MupShape(InfShape):
    """An ``InfShape`` with the kinds of its axes and the multipliers of its parameter.

    Parameters
    ----------
    axes : sequence of str
        Kind of each dimension, one of :data:`AXES`.
    shape, base_shape : sequence of int
        Sizes in this model and at base. Mode axes count *active* modes, fewer than in the tensor under ``max_n_modes``.
    adam_lr, sgd_lr : float
        Learning-rate multipliers for Adam-like optimizers and for SGD.
    of : int
        Number of trainable parameters that an optimizer must hold to be compared with the plan.
    frozen : bool
        Whether the layer's constructor freezes this parameter.
    divisor : float
        What the forward pass of mup's readout divides by: ``width_mult()`` of this shape. 1 for all other parameters.
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
        InfShape.__init__(self, self)  # it passes its first argument on to tuple.__init__
        self.axes, self.adam_lr, self.sgd_lr, self.of = tuple(axes), adam_lr, sgd_lr, of
        self.frozen, self.divisor = frozen, divisor

    def ninf(self) -> int:
        """Return mup's class: 2 = "matrix-like" (both optimizers divide the lr), 0 = "fixed" (neither does).

        mup's class 1, "vector-like", only applies to its readouts: MuAdam keeps the lr, MuSGD multiplies it. For all other
        parameters the two ratios below cover it.
        """
        if self.divisor != 1:
            return 1
        return 0 if self.adam_lr == self.sgd_lr == 1 else 2

    def width_mult(self) -> float:
        """Return the number by which ``mup.MuAdam`` divides the learning rate, and mup's readouts their input."""
        return 1 / self.adam_lr if self.divisor == 1 else self.divisor

    def fanin_fanout_mult_ratio(self) -> float:
        """Return the number by which ``mup.MuSGD`` divides the learning rate."""
        return 1 / self.sgd_lr

    def __reduce__(self):
        base = [d.dim if d.base_dim is None else d.base_dim for d in self]
        return MupShape, (self.axes, self.shape(), base, self.adam_lr, self.sgd_lr, self.of, self.frozen, self.divisor)


_MARK = "# Written by neuralop_mup: mode dimensions are the active modes.\n"


def save_shapes(shapes: Mapping[str, MupShape], path: str | os.PathLike) -> None:
    """Write a base-shape file in mup's format (YAML, one line per dimension; ``null`` is a fixed dimension)."""
    with replace_file(path, "base shapes") as part:
        _mup_save(dict(shapes), os.fspath(part))
        part.write_text(_MARK + part.read_text())


def load_shapes(path: str | os.PathLike) -> tuple[dict[str, list[int | None]], bool]:
    """Read a base-shape file written by :func:`save_shapes` or by mup.

    Returns
    -------
    dict of str to list
        Base sizes of each parameter's dimensions by name, ``None`` for fixed ones.
    bool
        Whether this package wrote the file. On mode dimensions it stores active modes, mup the size of the tensor.

    Raises
    ------
    MupError
        If the file is missing, empty, or not a mapping of names to lists of sizes.
    """
    name = os.fspath(path)
    try:
        shapes = {key: shape.base_shape() for key, shape in _mup_load(name).items()}
        ours = Path(name).read_text().startswith(_MARK)
    except OSError as error:
        raise MupError(f"Cannot read the base-shape file {name!r}: {error.strerror}.") from error
    except Exception as error:  # yaml's and mup's errors share no base class
        raise MupError(
            f"{name!r} is not a base-shape file: it is empty, truncated or in another format. Write one with "
            "neuralop_mup.save_base_shapes(model, path)."
        ) from error
    sizes = [size for dims in shapes.values() for size in dims if size is not None]
    wrong = any(isinstance(size, bool) or not isinstance(size, int) or size < 0 for size in sizes)
    if wrong or not shapes or not all(isinstance(key, str) for key in shapes):
        raise MupError(
            f"{name!r} has no valid base shapes: each dimension must be zero, a positive integer or null. Write the file "
            "with neuralop_mup.save_base_shapes(model, path)."
        )
    return shapes, ours
