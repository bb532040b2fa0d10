"""Parameters as one batch of equal blocks, so that one operator moves all of them.

A tensor of a parameter (itself, its gradient, its averages) is read as a real one with the real and imaginary parts on an
axis of their own, its other axes put into the order in which a direction works, and of its modes those taken that are due.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import prod, sqrt
from typing import Any, NamedTuple

import torch

from neuralop_mup.optim.musoap.update import Averages, Scratch
from neuralop_mup.torch_private import copy_each_

# A layout has one letter an axis:
#   l  numbers kernels that share a tensor (joint weights): nothing is shared between them
#   c  channels that do not mix (separable kernels), so that each is a block of its own
#   b  modes, each of them a block
#   i  is summed over
#   o  is produced
#   p  holds the real and the imaginary part
PAIR = "p"

Members = Sequence[tuple[torch.Tensor, str]]  # parameters with their layouts

# Beyond this size an axis keeps its own coordinates: a decomposition takes d³ operations and its bases d² numbers each.
MAX_BASIS = 2048
_WIDE = (torch.float32, torch.complex64, torch.float64, torch.complex128)


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


def axes_of(x: torch.Tensor, layout: str) -> Axes:
    """The axes of a parameter."""
    found = {letter: tuple(axis for axis, own in enumerate(layout) if own == letter) for letter in "lcb"}
    mixed = sorted((size, letter, axis) for axis, (size, letter) in enumerate(zip(x.shape, layout, strict=True)))
    return Axes(found["l"], tuple(axis for _, letter, axis in mixed if letter in "io"), found["c"], found["b"])


def block_shape(x: torch.Tensor, layout: str) -> tuple[int, int]:
    """Sizes (in, out) of one block."""
    n_in, n_out = (prod([n for n, own in zip(x.shape, layout, strict=True) if own == letter]) for letter in "io")
    return n_in, n_out


def wide_type(x: torch.Tensor) -> torch.dtype:
    """In which averages of a tensor are kept: in half precision squares overflow at 256 and vanish at 2e-4."""
    return torch.promote_types(x.dtype, torch.float32)


def wide(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors in that type; themselves where they are."""
    return [x if x.dtype in _WIDE else x.to(wide_type(x)) for x in tensors]


def as_real(x: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs of real ones, a view; real ones as they are."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def local_reals(tensors: Iterable[Any]) -> list[torch.Tensor]:
    """:func:`as_real` of what this process has of each."""
    local = [x.to_local() if hasattr(x, "placements") else x for x in tensors]
    return [torch.view_as_real(x.resolve_conj()) if x.is_complex() else x for x in local]


def has_basis(d: int) -> bool:
    """Whether an axis of so many entries has a basis."""
    return 1 < d <= MAX_BASIS


class Turn(NamedTuple):
    """The modes of a batch that move at one step; views.

    Attributes
    ----------
    period : int
        After how many steps all modes have moved.
    modes : tuple
        What takes them out of a tensor of a parameter's shape in the batch's order; () where all move.
    shape : tuple of int
        (layers, d_1, …, d_r, parts, channels, *modes), as :mod:`neuralop_mup.optim.musoap.update` has them.
    opened : tuple of int
        The same with all axes of a parameter apart: (parameters, *layers, *mixed, parts, *channels, *modes).
    weights, means : list of torch.Tensor
        Of each parameter its weights, with parts on the last axis, and its momentum.
    averages : Averages
    """

    period: int
    modes: tuple
    shape: tuple[int, ...]
    opened: tuple[int, ...]
    weights: list[torch.Tensor]
    means: list[torch.Tensor]
    averages: Averages


class Blocks:
    """Parameters that move together, alike in all sizes.

    Second moments, Gram matrices, bases and ranks of all of them lie in one buffer each, of which the entries of their
    states become views.

    Parameters
    ----------
    members : sequence of (torch.Tensor, str)
        Parameters with their layouts.
    states : mapping
        Of each its state.
    """

    def __init__(self, members: Members, states: Mapping[Any, dict[str, Any]]) -> None:
        self.params = [p for p, _ in members]
        self.states = [states[p] for p in self.params]
        self.step: int = self.states[0]["step"]
        self.dtype = next(p.grad.dtype for p in self.params if p.grad is not None)  # of gradients
        self._axes = [axes_of(p, layout) for p, layout in members]
        self._views: list[tuple[dict[str, Any], str, torch.Tensor, int]] = []
        self._turns: dict[tuple[int, int], Turn] = {}
        (p, layout), axes = members[0], self._axes[0]
        self._parts = 2 if p.is_complex() or PAIR in layout else 1
        # Pairs of real numbers come last.
        self._orders = [
            (*a.order, *([x.index(PAIR)] if PAIR in x else [])) for a, (_, x) in zip(self._axes, members, strict=True)
        ]
        self._sizes = [tuple(p.shape[axis] for axis in own) for own in axes]  # of layers, mixed, channels and modes
        self.first = tuple(layout[axis] == layout[axes.mixed[0]] for axis in axes.mixed) or (True,)
        self.block = block_shape(p, layout)
        scales = [sqrt(n_out / n_in) for n_in, n_out in (block_shape(*member) for member in members)]
        grams, bases = self._adopt_squares("gram"), self._adopt_squares("basis")
        layers, mixed, channels, modes = self._sizes
        v = self._adopt("exp_avg_sq", (*layers, *mixed, *channels, *modes))
        ones = (1,) * len(mixed)
        low_rank = self._adopt("low_rank", (*layers, *ones, *channels, *modes)) if "low_rank" in self.states[0] else None
        self._averages = Averages(v, grams, bases, low_rank)
        # √(out/in), one number if all have the same, else one for each layer.
        self.scale: float | torch.Tensor = scales[0]
        if len(set(scales)) > 1:
            of_layers = torch.tensor(scales, dtype=v.dtype, device=v.device).repeat_interleave(prod(layers))
            self.scale = of_layers.view(-1, *(1,) * (len(self.first) + 1 + len(modes)))

    def _keep(self, names: Sequence[str], orders: Sequence[Sequence[int]] | None, shape: Sequence[int]) -> torch.Tensor:
        """Copy one entry of all states, by its name in each, into one buffer, and make them views of it."""
        like = self.states[0][names[0]]
        whole = torch.empty(len(names), *shape, dtype=like.dtype, device=like.device)
        for i, (state, name) in enumerate(zip(self.states, names, strict=True)):
            view = whole[i] if orders is None else whole[i].permute(*orders[i])
            view.copy_(state[name])
            state[name] = view
            self._views.append((state, name, view, view.data_ptr()))
        return whole

    def _adopt(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """What has an axis for each of the parameter's own, as (layers, d_1, …, d_r, channels, *modes)."""
        orders = [[axes.order.index(axis) for axis in sorted(axes.order)] for axes in self._axes]
        whole = self._keep([name] * len(self.params), orders, shape)
        layers, mixed, channels, modes = self._sizes
        sizes = shape[len(layers) : len(layers) + len(mixed)] or (1,)
        return whole.view(len(whole) * prod(layers), *sizes, prod(channels), *modes)

    def _adopt_squares(self, what: str) -> list[torch.Tensor | None]:
        """(layers, d, d) for each axis of a block; None for one without a basis, and for the one that stands for none."""
        found: list[torch.Tensor | None] = []
        for i, d in enumerate(self._sizes[1]):
            names = [f"{what}_{axes.mixed[i]}" for axes in self._axes]
            shape = (prod(self._sizes[0]), d, d)
            found.append(self._keep(names, None, shape).flatten(0, 1) if has_basis(d) else None)
        return found or [None]

    def is_current(self) -> bool:
        """Whether the states are still those that were adopted, and nobody stepped them elsewhere."""
        # Lists: a generator is a call for each.
        counted = all([state.get("step") == self.step for state in self.states])  # noqa: C419
        return counted and all([s.get(n) is x and x.data_ptr() == pointer for s, n, x, pointer in self._views])  # noqa: C419

    def taken(self) -> None:
        """A step was made."""
        self.step += 1
        for state in self.states:
            state["step"] = self.step

    def turn(self, period: int) -> Turn:
        """The modes of the next step: every ``period``-th along the axis of most modes, and others at each step."""
        layers, mixed, channels, modes = self._sizes
        size = max(modes, default=1)  # without modes everything moves
        period = min(period, size)
        key = (period, self.step % period)
        if key not in self._turns:
            due = (slice(None),) * modes.index(size) + (slice(key[1], size, period),) if modes else ()
            v, grams, bases, low_rank = self._averages
            of_averages = (slice(None),) * (len(self.first) + 2) + due
            of_params = (slice(None),) * len(layers + mixed + channels) + due if modes else ()
            v, low_rank = v[of_averages], None if low_rank is None else low_rank[of_averages]
            sizes = tuple(v.shape[len(self.first) + 2 :])
            weights = [as_real(x) for x in self.in_order([p.detach() for p in self.params], of_params)]
            self._turns[key] = Turn(
                period=period,
                modes=of_params,
                shape=(len(v), *v.shape[1 : 1 + len(self.first)], self._parts, prod(channels), *sizes),
                opened=(len(self.params), *layers, *mixed, self._parts, *channels, *sizes),
                weights=weights if self._parts == 2 else [x.unsqueeze(-1) for x in weights],
                means=self.in_order([state["exp_avg"] for state in self.states], of_params),
                averages=Averages(v, grams, bases, low_rank),
            )
        return self._turns[key]

    def in_order(self, tensors: Iterable[torch.Tensor | None], index: tuple) -> list[torch.Tensor]:
        """Of a tensor of each parameter's shape the modes that move, in the batch's order; views."""
        found = [x.resolve_conj().permute(order) for x, order in zip(tensors, self._orders, strict=True) if x is not None]
        return [x[index] for x in found] if index else found

    def read(self, views: list[torch.Tensor], turn: Turn, scratch: Scratch, name: str) -> torch.Tensor:
        """The batch of what :meth:`in_order` gives of gradients or momenta, in the scratch under a name."""
        out = scratch.take(name, turn.shape, self._averages.v)
        target = self._opened(out, turn)
        if self._parts == 1:
            copy_each_(list(target.squeeze(-1)), views)
            return out
        # Operators on parts that alternate in memory take a CPU up to ten times as long as on parts that lie apart, and
        # complex numbers are copied seven times as fast as pairs.
        pairs = scratch.take("turned", target.shape, out)
        copy_each_(list(torch.view_as_complex(pairs) if views[0].is_complex() else pairs), views)
        target.copy_(pairs)
        return out

    def _opened(self, x: torch.Tensor, turn: Turn) -> torch.Tensor:
        """A batch as (parameters, *axes of one, parts), a view."""
        return x.view(turn.opened).movedim(1 + len(self._sizes[0] + self._sizes[1]), -1)

    def of_params(self, x: torch.Tensor, turn: Turn, scratch: Scratch) -> list[torch.Tensor]:
        """A batch as one tensor for each parameter, parts on the last axis."""
        opened = self._opened(x, turn)
        return list(opened if self._parts == 1 else scratch.copy(opened))

    def of_modes(self, x: torch.Tensor, turn: Turn) -> list[torch.Tensor]:
        """A number for each mode (layers, 1, …, 1, channels, *modes), to be multiplied onto the same."""
        layers, mixed, channels, _ = self._sizes
        return list(
            x.reshape(len(self.params), *layers, *(1,) * len(mixed), *channels, *turn.shape[len(self.first) + 3 :], 1)
        )
