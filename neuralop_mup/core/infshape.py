"""mup's base-shape mechanism, extended with Fourier-mode dimensions and roles.

``mup.MuAdam`` and ``mup.MuSGD`` ask a parameter's ``infshape`` three things: ``ninf()`` (which of mup's three classes
it is in), ``width_mult()`` and ``fanin_fanout_mult_ratio()`` (by how much to divide its learning rate). A
:class:`MupShape` answers so that mup's optimizers arrive at this package's learning rates, also where mup's own reading
of the shape would be wrong (neuralop stores kernels (in, out, …), and modes are not widths).
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mup.infshape import InfDim, InfShape
from mup.shape import load_base_shapes as _mup_load
from mup.shape import save_base_shapes as _mup_save

from neuralop_mup.errors import MupError
from neuralop_mup.files import replace_file

# Kinds of axis. Channels and ranks scale with width (ranks also with modes), modes with n_modes; the ``fixed`` ones are
# the same at base. A factor of a factorized kernel sums over ``rank_in`` axes and produces ``rank_out`` axes. Mode axes
# store both signs of each mode; ``modes_half`` (the last axis of a real transform) stores n_modes // 2 + 1;
# ``modes_single`` stores one sign alone, K entries (spherical degrees, quadrants of the legacy convolution). ``pair`` is
# the real and the imaginary part of a complex number that is stored as two reals.
GROWS = ("in", "out", "rank_in", "rank_out", "modes", "modes_half", "modes_single")
AXES = (*GROWS, "in_fixed", "out_fixed", "fixed", "pair")


class MupShape(InfShape):
    """An ``InfShape`` that also knows its axes' kinds and the multipliers that its role was given.

    Parameters
    ----------
    axes : sequence of str
        Kind of each dimension, one of :data:`AXES`.
    shape, base_shape : sequence of int
        Sizes here and at base. Mode axes carry the *active* stored modes, which under ``max_n_modes`` are fewer than
        the tensor has.
    adam_lr, sgd_lr : float
        Learning-rate multipliers for Adam-like optimizers and for SGD.
    of : int
        Number of parameters, but those that their layers freeze, in the plan that this one belongs to.
    frozen : bool
        Whether its layer's own constructor freezes this one.
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
        """mup's class: 2 = "matrix-like" (both optimizers divide the lr), 0 = "fixed" (neither touches it).

        mup's "vector-like" class, 1, is that of its readouts (MuAdam leaves the lr, MuSGD multiplies it). Other parameters
        do not need it: what it does follows from the two ratios below.
        """
        if self.divisor != 1:
            return 1
        return 0 if self.adam_lr == self.sgd_lr == 1 else 2

    def width_mult(self) -> float:
        """What ``mup.MuAdam`` divides the learning rate by, and the forward pass of mup's readouts."""
        return 1 / self.adam_lr if self.divisor == 1 else self.divisor

    def fanin_fanout_mult_ratio(self) -> float:
        """What ``mup.MuSGD`` divides the learning rate by."""
        return 1 / self.sgd_lr

    def __reduce__(self):
        base = [d.dim if d.base_dim is None else d.base_dim for d in self]
        return MupShape, (self.axes, self.shape(), base, self.adam_lr, self.sgd_lr, self.of, self.frozen, self.divisor)


_MARK = "# Written by neuralop_mup: mode dimensions are the active modes.\n"


def save_shapes(shapes: Mapping[str, MupShape], path: str | os.PathLike) -> None:
    """Write a base-shape file in mup's own format (YAML, one line a dimension; ``null`` is a fixed dimension)."""
    with replace_file(path, "base shapes") as part:
        _mup_save(dict(shapes), os.fspath(part))
        part.write_text(_MARK + part.read_text())


def load_shapes(path: str | os.PathLike) -> tuple[dict[str, list[int | None]], bool]:
    """Read a base-shape file written by :func:`save_shapes` or by mup.

    Returns
    -------
    dict of str to list
        Base size of each dimension by parameter name, ``None`` where the dimension is fixed.
    bool
        Whether the file is ours: mup's gives the size of the tensor on mode dimensions, ours the active modes.

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
            f"{name!r} is not a base-shape file (it is empty, cut off or of another format): write one with "
            "neuralop_mup.save_base_shapes(model, path)."
        ) from error
    sizes = [size for dims in shapes.values() for size in dims if size is not None]
    wrong = any(isinstance(size, bool) or not isinstance(size, int) or size < 0 for size in sizes)
    if wrong or not shapes or not all(isinstance(key, str) for key in shapes):
        raise MupError(
            f"{name!r} holds no usable base shapes (each dimension must be zero, a positive integer or null): write one "
            "with neuralop_mup.save_base_shapes(model, path)."
        )
    return shapes, ours
