"""How parameters lie together in one buffer, so that one operator moves all of them.

A tensor of a parameter (itself, its gradient, its averages) is read as a real one with the real and imaginary parts on the
last axis, its other axes put into the order that a direction works in, and of its modes those taken whose turn it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from neuralop_mup.optim.matrix.layouts import PAIR, block_scale, plain_sizes

__all__ = ["Comb", "Slot", "Stack", "comb_of"]


@dataclass(frozen=True)
class Comb:
    """Some modes: entries of one axis of modes, with all of the others.

    Attributes
    ----------
    axis : int
        Which of the axes of modes.
    due : slice
        Which of its entries; those of a whole comb, or a run of them.
    size : int
        Of the axis.
    period : int
        In how many steps all modes have moved.
    """

    axis: int
    due: slice
    size: int
    period: int

    def __len__(self) -> int:
        return len(range(*self.due.indices(self.size)))

    @property
    def key(self) -> tuple[int, int]:
        """Which comb of a stack it is."""
        return self.period, self.due.start

    def pieces(self, n: int) -> list[Comb]:
        """Its entries in about n runs."""
        entries = range(*self.due.indices(self.size))
        length = -(-len(entries) // max(1, min(n, len(entries))))
        runs = [entries[i : i + length] for i in range(0, len(entries), length)]
        return [replace(self, due=slice(run.start, run.stop, run.step)) for run in runs]


def comb_of(sizes: Sequence[int], period: int, step: int) -> Comb:
    """Every ``period``-th along the axis of most modes, another comb at each step. Without modes everything moves."""
    size = max(sizes, default=1)
    period = min(period, size)
    return Comb(sizes.index(size) if sizes else 0, slice(step % period, size, period), size, period)


@dataclass(frozen=True)
class Slot:
    """One parameter in a stack.

    Attributes
    ----------
    p : torch.Tensor
        The parameter, with its gradient.
    state : dict
        The optimizer's state of it.
    layout : str
        One letter an axis (:mod:`neuralop_mup.optim.matrix.layouts`).
    places : tuple of tuple of int
        Its axes, not counting that of pairs, as (layers, first, second, channels, modes), in which order a stack has them:
        ``first`` and ``second`` are those of a block.
    """

    p: torch.Tensor
    state: dict[str, Any]
    layout: str
    places: tuple[tuple[int, ...], ...]

    @property
    def grad(self) -> torch.Tensor:
        """Its gradient: parameters without one are in no stack."""
        assert self.p.grad is not None
        return self.p.grad

    @property
    def order(self) -> tuple[int, ...]:
        """Axes in the stack's order."""
        return tuple(itertools.chain(*self.places))

    @property
    def n_parts(self) -> int:
        """Two where numbers are complex."""
        return 2 if self.p.is_complex() or PAIR in self.layout else 1

    @property
    def first_axes(self) -> list[int]:
        """What the parameter itself numbers the axes of ``first``."""
        numbers = [axis for axis, letter in enumerate(self.layout) if letter != PAIR]
        return [numbers[axis] for axis in self.places[1]]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the axes in the stack's order."""
        return tuple(itertools.chain(*self.split()))

    def split(self, comb: Comb | None = None) -> tuple[tuple[int, ...], ...]:
        """Sizes by place, of the modes of a comb or of all."""
        sizes = plain_sizes(self.p, self.layout)
        *others, modes = [[sizes[axis] for axis in place] for place in self.places]
        if comb is not None and modes:
            modes[comb.axis] = len(comb)
        return (*map(tuple, others), tuple(modes))

    @property
    def scale(self) -> float:
        """√(out/in) of its blocks."""
        return block_scale(self.p, self.layout)

    def comb(self, period: int, step: int) -> Comb:
        """The modes that move at a step."""
        return comb_of(self.split()[-1], period, step)

    def due(self, x: torch.Tensor, comb: Comb) -> torch.Tensor:
        """Of a tensor in the stack's order, whatever comes behind, the modes of a comb; a view."""
        at = len(self.order) - len(self.places[-1]) + comb.axis
        return x[(slice(None),) * at + (comb.due,)] if self.places[-1] else x

    def view(self, x: torch.Tensor, comb: Comb) -> torch.Tensor:
        """A tensor of the parameter's shape as the comb's modes in the stack's order; pairs of real numbers come last."""
        if PAIR in self.layout:
            x = x.movedim(self.layout.index(PAIR), -1)
        return self.due(x.resolve_conj().permute(*self.order, *range(len(self.order), x.ndim)), comb)

    def as_stored(self, x: torch.Tensor) -> torch.Tensor:
        """A tensor in the stack's order with its axes as the parameter has them, a view."""
        return x.permute(*sorted(range(len(self.order)), key=self.order.__getitem__))


class Stack:
    """Parameters that move together.

    Attributes
    ----------
    slots : list of Slot
    key : tuple
        What they have in common.
    step, period : int
        Steps that they have made, and after how many all modes have moved.
    buffers : dict of str to torch.Tensor
        Averages of all of them, of which each parameter's own are views.
    constants : dict
        What a direction works out once.
    """

    def __init__(self, slots: list[Slot], key: tuple, step: int, period: int) -> None:
        self.slots, self.key, self.step, self.period = slots, key, step, period
        self.buffers: dict[str, torch.Tensor] = {}
        self.constants: dict[Any, Any] = {}
        self._views: list[tuple[dict[str, Any], str, torch.Tensor, int]] = []

    def adopt(
        self,
        buffer: str,
        shape: Iterable[int],
        names: Sequence[str],
        stored: Callable[[Slot, torch.Tensor], torch.Tensor] = lambda slot, x: x,
    ) -> None:
        """Copy one entry of all states, by its name in each, into one buffer (slots, *shape), and make them views of it."""
        like = self.slots[0].state[names[0]]
        self.buffers[buffer] = whole = torch.empty(len(self.slots), *shape, dtype=like.dtype, device=like.device)
        for slot, name, own in zip(self.slots, names, whole, strict=True):
            view = stored(slot, own)
            view.copy_(slot.state[name])
            slot.state[name] = view
            self._views.append((slot.state, name, view, view.data_ptr()))

    def is_current(self) -> bool:
        """Whether the states are still those that were adopted, and nobody stepped them elsewhere."""
        return all(slot.state.get("step") == self.step for slot in self.slots) and all(
            state.get(name) is view and view.data_ptr() == pointer for state, name, view, pointer in self._views
        )

    @property
    def comb(self) -> Comb:
        """The modes of this step, where all slots have the same."""
        return self.slots[0].comb(self.period, self.step)
