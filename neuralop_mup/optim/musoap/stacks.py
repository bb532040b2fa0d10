"""Stack parameters into batches of equally sized blocks, so that single operators update all of them.

Tensors are viewed as real tensors, with real and imaginary parts on a separate axis and all other axes in a common order.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import prod, sqrt
from typing import Any, NamedTuple

import torch

from neuralop_mup.optim.musoap.update import Averages, PerAxis, Scratch
from neuralop_mup.torch_private import copy_each_

# A layout has one letter per axis:
#   l  independent kernels in one tensor (joint weights)
#   c  channels that do not mix (separable kernels), one block each
#   b  modes, one block each
#   i  input index (summed over)
#   o  output index
#   p  real and imaginary part
PAIR = "p"

Members = Sequence[tuple[Any, str]]  # parameters with their layouts
State = dict[str, Any]  # the optimizer state of a parameter

# Longer axes are not rotated, because a decomposition takes d³ operations and each basis has d² entries.
MAX_BASIS = 2048
_PRECISE = (torch.float32, torch.complex64, torch.float64, torch.complex128)


class Axes(NamedTuple):
    """Axes of a parameter, except the axis of pairs, in the order of a batch of blocks."""

    layers: tuple[int, ...]
    # axes of a block, shortest first, so that layers from a to b and from b to a channels have equal shapes
    mixed: tuple[int, ...]
    channels: tuple[int, ...]
    modes: tuple[int, ...]

    @property
    def order(self) -> tuple[int, ...]:
        return self.layers + self.mixed + self.channels + self.modes


def axes_of(x: torch.Tensor, layout: str) -> Axes:
    found = {letter: tuple(axis for axis, own in enumerate(layout) if own == letter) for letter in "lcb"}
    mixed = sorted((size, letter, axis) for axis, (size, letter) in enumerate(zip(x.shape, layout, strict=True)))
    return Axes(found["l"], tuple(axis for _, letter, axis in mixed if letter in "io"), found["c"], found["b"])


def block_shape(x: torch.Tensor, layout: str) -> tuple[int, int]:
    """Return the sizes (in, out) of one block."""
    n_in, n_out = (prod([n for n, own in zip(x.shape, layout, strict=True) if own == letter]) for letter in "io")
    return n_in, n_out


def upcast_dtype(x: torch.Tensor) -> torch.dtype:
    """Return the dtype for averages, which is at least float32 because squares in float16 overflow or underflow."""
    return torch.promote_types(x.dtype, torch.float32)


def upcast(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Convert tensors to :func:`upcast_dtype`, without a copy if they already have this dtype."""
    return [x if x.dtype in _PRECISE else x.to(upcast_dtype(x)) for x in tensors]


def as_real(x: torch.Tensor) -> torch.Tensor:
    """Return a view of a complex tensor with pairs of real numbers on the last axis; return real tensors unchanged."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def local_reals(tensors: Iterable[Any]) -> list[torch.Tensor]:
    """Return :func:`as_real` of this process's shard of each tensor."""
    return [as_real(x.to_local() if hasattr(x, "placements") else x) for x in tensors]


def has_basis(d: int) -> bool:
    """Return whether an axis of length ``d`` has a basis."""
    return 1 < d <= MAX_BASIS


class ActiveModes(NamedTuple):
    """Views of the modes of a batch that are updated in one step.

    Attributes
    ----------
    period : int
        Number of steps between two updates of a mode.
    modes : tuple
        Index of the active modes in a permuted parameter, or () if it has no modes.
    shape : tuple of int
        (layers, d_1, …, d_r, parts, channels, *modes), see :mod:`neuralop_mup.optim.musoap.update`.
    unflattened : tuple of int
        The same shape with separate axes, (parameters, *layers, *mixed, parts, *channels, *modes).
    weights, means : list of torch.Tensor
        Weights of each parameter, with real and imaginary parts on the last axis, and momenta.
    averages : Averages
    """

    period: int
    modes: tuple
    shape: tuple[int, ...]
    unflattened: tuple[int, ...]
    weights: list[torch.Tensor]
    means: list[torch.Tensor]
    averages: Averages


class Blocks:
    """Parameters of equal size that are updated together.

    For each kind of average, one buffer holds the averages of all parameters, and the entries of their states become views
    of it.

    Parameters
    ----------
    members : sequence of (torch.Tensor, str)
        Parameters with their layouts.
    states : mapping
        State of each parameter.
    """

    def __init__(self, members: Members, states: Mapping[Any, State]) -> None:
        self.params = [p for p, _ in members]
        self.states = [states[p] for p in self.params]
        self.step: int = self.states[0]["step"]
        self.dtype = next(p.grad.dtype for p in self.params if p.grad is not None)  # dtype of the gradients
        self._axes = [axes_of(p, layout) for p, layout in members]
        self._views: list[tuple[State, str, torch.Tensor, int]] = []
        self._active: dict[tuple[int, int], ActiveModes] = {}
        (p, layout), axes = members[0], self._axes[0]
        self._parts = 2 if p.is_complex() or PAIR in layout else 1
        # The axis of pairs comes last.
        self._orders = [
            (*a.order, *([x.index(PAIR)] if PAIR in x else [])) for a, (_, x) in zip(self._axes, members, strict=True)
        ]
        # sizes of the layer, mixed, channel and mode axes
        self._sizes = [tuple(p.shape[axis] for axis in own) for own in axes]
        self.first = tuple(layout[axis] == layout[axes.mixed[0]] for axis in axes.mixed) or (True,)
        self.block = block_shape(p, layout)
        scales = [sqrt(n_out / n_in) for n_in, n_out in (block_shape(*member) for member in members)]
        v, grams, bases = self._adopt("exp_avg_sq"), self._adopt_squares("gram"), self._adopt_squares("basis")
        self._averages = Averages(v, grams, bases, self._adopt("low_rank") if "low_rank" in self.states[0] else None)
        # √(out/in), as one number or, if the values differ, as one number per layer.
        self.scale: float | torch.Tensor = scales[0]
        if len(set(scales)) > 1:
            of_layers = torch.tensor(scales, dtype=v.dtype, device=v.device).repeat_interleave(prod(self._sizes[0]))
            self.scale = of_layers.view(-1, *(1,) * (v.ndim - 1))

    def _keep(self, names: Sequence[str], orders: Sequence[Sequence[int]]) -> torch.Tensor:
        """Stack an entry of all states with permuted axes, and replace the entries with views of the stack."""
        entries = list(zip(self.states, names, orders, strict=True))
        whole = torch.stack([state[name].permute(order) for state, name, order in entries]).contiguous()
        for (state, name, order), own in zip(entries, whole, strict=True):
            state[name] = own.permute([order.index(axis) for axis in range(own.ndim)])
            self._views.append((state, name, state[name], own.data_ptr()))
        return whole

    def _adopt(self, name: str) -> torch.Tensor:
        """Stack an entry that has all axes of a parameter into shape (layers, d_1, …, d_r, channels, *modes)."""
        orders = [[sorted(axes.order).index(axis) for axis in axes.order] for axes in self._axes]
        whole = self._keep([name] * len(self.params), orders)
        layers, mixed, channels, modes = self._sizes
        sizes = whole.shape[1 + len(layers) :][: len(mixed)] or (1,)
        return whole.view(len(whole) * prod(layers), *sizes, prod(channels), *modes)

    def _adopt_squares(self, what: str) -> PerAxis:
        """Stack one (layers, d, d) entry per axis of a block, or return None for axes without a basis."""
        found = PerAxis()
        for i, d in enumerate(self._sizes[1]):
            names, orders = [f"{what}_{axes.mixed[i]}" for axes in self._axes], [(0, 1, 2)] * len(self.params)
            found.append(self._keep(names, orders).flatten(0, 1) if has_basis(d) else None)
        return found or [None]

    def is_current(self) -> bool:
        """Return whether the states still hold the stacked views and have the same step count."""
        # Use lists, because a generator costs one call per element.
        counted = all([state.get("step") == self.step for state in self.states])  # noqa: C419
        return counted and all([s.get(n) is x and x.data_ptr() == pointer for s, n, x, pointer in self._views])  # noqa: C419

    def count_step(self) -> None:
        self.step += 1
        for state in self.states:
            state["step"] = self.step

    def active_modes(self, period: int) -> ActiveModes:
        """Return the modes that the next step updates: every ``period``-th mode along the axis with the most modes."""
        layers, mixed, channels, modes = self._sizes
        size = max(modes, default=1)  # without mode axes, all entries are updated
        period = min(period, size)
        key = (period, self.step % period)
        if key not in self._active:
            due = (slice(None),) * modes.index(size) + (slice(key[1], size, period),) if modes else ()
            v, grams, bases, low_rank = self._averages
            of_averages = (slice(None),) * (len(self.first) + 2) + due
            of_params = (slice(None),) * len(layers + mixed + channels) + due if modes else ()
            v, low_rank = v[of_averages], None if low_rank is None else low_rank[of_averages]
            sizes = tuple(v.shape[len(self.first) + 2 :])
            weights = [as_real(x) for x in self.in_order([p.detach() for p in self.params], of_params)]
            self._active[key] = ActiveModes(
                period=period,
                modes=of_params,
                shape=(len(v), *v.shape[1 : 1 + len(self.first)], self._parts, prod(channels), *sizes),
                unflattened=(len(self.params), *layers, *mixed, self._parts, *channels, *sizes),
                weights=weights if self._parts == 2 else [x.unsqueeze(-1) for x in weights],
                means=self.in_order([state["exp_avg"] for state in self.states], of_params),
                averages=Averages(v, grams, bases, low_rank),
            )
        return self._active[key]

    def in_order(self, tensors: Iterable[torch.Tensor | None], index: tuple) -> list[torch.Tensor]:
        """Return views of the active modes of parameter-shaped tensors, with axes in the order of the batch."""
        pairs = zip(tensors, self._orders, strict=True)
        return [x.resolve_conj().permute(order)[index] for x, order in pairs if x is not None]

    def read(self, views: list[torch.Tensor], active: ActiveModes, scratch: Scratch, name: str) -> torch.Tensor:
        """Copy views returned by :meth:`in_order` into a named scratch tensor, and return this tensor."""
        out = scratch.take(name, active.shape, self._averages.v)
        target = self._unflatten(out, active)
        if self._parts == 1:
            copy_each_(list(target.squeeze(-1)), views)
            return out
        # On a CPU, interleaved real and imaginary parts slow operators down by up to a factor of ten. Copying complex
        # numbers is seven times faster than copying pairs.
        pairs = scratch.take("permuted", target.shape, out)
        copy_each_(list(torch.view_as_complex(pairs) if views[0].is_complex() else pairs), views)
        target.copy_(pairs)
        return out

    def _unflatten(self, x: torch.Tensor, active: ActiveModes) -> torch.Tensor:
        """Return a view of a batch as (parameters, *axes of one parameter, parts)."""
        return x.view(active.unflattened).movedim(1 + len(self._sizes[0] + self._sizes[1]), -1)

    def per_parameter(self, x: torch.Tensor, active: ActiveModes, scratch: Scratch) -> list[torch.Tensor]:
        """Split a batch into one tensor per parameter, with real and imaginary parts on the last axis."""
        unflattened = self._unflatten(x, active)
        return list(unflattened if self._parts == 1 else scratch.copy(unflattened))

    def per_mode(self, x: torch.Tensor, active: ActiveModes) -> list[torch.Tensor]:
        """Split factors per mode (layers, 1, …, 1, channels, *modes) into one broadcastable tensor per parameter."""
        layers, mixed, channels, _ = self._sizes
        return list(
            x.reshape(len(self.params), *layers, *(1,) * len(mixed), *channels, *active.shape[len(self.first) + 3 :], 1)
        )
