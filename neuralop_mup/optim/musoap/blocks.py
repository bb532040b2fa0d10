"""Parameters as one batch of equal blocks, so that one operator moves all of them.

A tensor of a parameter (itself, its gradient, its averages) is read as a real one with the real and imaginary parts on an axis
of their own, its other axes put into the order in which a direction works, and of its modes those taken whose turn it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import torch

from neuralop_mup.optim.musoap.direction import Averages
from neuralop_mup.optim.musoap.layouts import PAIR, Axes, axes_of, block_shape
from neuralop_mup.torch_private import copy_each_

__all__ = ["Blocks", "Members", "Turn", "as_real", "due_modes", "has_basis", "is_sharded", "local", "wide", "wide_type"]

Members = Sequence[tuple[torch.Tensor, str]]  # parameters with their layouts

# Beyond this size an axis keeps its own coordinates: a decomposition takes d³ operations and its bases d² numbers each.
MAX_BASIS = 2048


def wide_type(x: torch.Tensor) -> torch.dtype:
    """In which averages of a tensor are kept: in half precision squares overflow at 256 and vanish at 2e-4."""
    return torch.promote_types(x.dtype, torch.float32)


def wide(x: torch.Tensor) -> torch.Tensor:
    """The tensor in that type; itself where it is."""
    return x if x.dtype in (torch.float32, torch.complex64) else x.to(wide_type(x))


def as_real(x: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs of real ones, a view; real ones as they are."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def is_sharded(x: Any) -> bool:
    """Whether this is a DTensor, of which a process has a part."""
    return hasattr(x, "placements") and hasattr(x, "full_tensor")


def local(x: Any) -> torch.Tensor:
    """What this process has of it."""
    return x.to_local() if is_sharded(x) else x


def has_basis(d: int) -> bool:
    """Whether an axis of so many entries has a basis."""
    return 1 < d <= MAX_BASIS


def due_modes(sizes: Sequence[int], period: int, step: int) -> tuple[int, slice, int]:
    """Which modes move at a step: an axis of modes, its entries whose turn it is, and after how many steps all have moved.

    Every ``period``-th along the axis of most modes, others at each step. Without modes everything moves.
    """
    size = max(sizes, default=1)
    period = min(period, size)
    return sizes.index(size) if sizes else 0, slice(step % period, size, period), period


class Turn(NamedTuple):
    """The modes of a batch that move at one step; views.

    Attributes
    ----------
    weights, means : list of torch.Tensor
        Of each parameter its weights, with parts on the last axis, and its momentum.
    averages : Averages
    """

    weights: list[torch.Tensor]
    means: list[torch.Tensor]
    averages: Averages


class Blocks:
    """Parameters that move together, alike in all sizes.

    Second moments, Gram matrices, bases and ranks of all of them lie in one buffer each, of which the entries of their states
    become views.

    Parameters
    ----------
    members : sequence of (torch.Tensor, str)
        Parameters with their layouts.
    states : mapping
        Of each its state.
    """

    def __init__(self, members: Members, states: Mapping[Any, dict[str, Any]]) -> None:
        self.params, self._layouts = [p for p, _ in members], [layout for _, layout in members]
        self.states = [states[p] for p in self.params]
        self.axes = [axes_of(p, layout) for p, layout in members]
        self.step: int = self.states[0]["step"]
        self.momentum = [as_real(local(state["exp_avg"])) for state in self.states]
        self._views: list[tuple[dict[str, Any], str, torch.Tensor, int]] = []
        self._turns: dict[tuple[int, int], Turn] = {}
        first, p, layout = self.axes[0], self.params[0], self._layouts[0]
        self._parts = 2 if p.is_complex() or PAIR in layout else 1
        self._parts_at = 1 + len(first.layers) + len(first.mixed)
        self._sizes = {axis: p.shape[axis] for axis in first.order}
        self.first = tuple(layout[axis] == layout[first.mixed[0]] for axis in first.mixed) or (True,)
        self._grams, self._bases = self._squares("gram"), self._squares("basis")
        self._v = self._adopt("exp_avg_sq", self._sizes)
        self._low_rank = self._adopt("low_rank", first.of_a_mode(self._sizes)) if "low_rank" in self.states[0] else None
        scales = [block_shape(p, layout) for p, layout in members]
        self.scale = self._of_layers([(n_out / n_in) ** 0.5 for n_in, n_out in scales])

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

    def _adopt(self, name: str, sizes: Mapping[int, int]) -> torch.Tensor:
        """What has one number for each of the parameter's own, or for each of its modes."""
        orders = [[axes.order.index(axis) for axis in sorted(axes.order)] for axes in self.axes]
        return self._keep([name] * len(self.params), orders, [sizes[axis] for axis in self.axes[0].order])

    def _squares(self, what: str) -> list[torch.Tensor | None]:
        """(layers, d, d) for each axis of a block; None for one without a basis, and for the one that stands for none."""
        found: list[torch.Tensor | None] = []
        for i, axis in enumerate(self.axes[0].mixed):
            names = [f"{what}_{axes.mixed[i]}" for axes in self.axes]
            square = has_basis(self._sizes[axis])
            found.append(self._keep(names, None, self.states[0][names[0]].shape).flatten(0, 1) if square else None)
        return found or [None]

    def is_current(self) -> bool:
        """Whether the states are still those that were adopted, and nobody stepped them elsewhere."""
        steps = [state for state in self.states if state.get("step") != self.step]
        moved = [view for state, name, view, at in self._views if state.get(name) is not view or view.data_ptr() != at]
        return not steps and not moved

    def taken(self) -> None:
        """A step was made."""
        self.step += 1
        for state in self.states:
            state["step"] = self.step

    def due(self, period: int) -> tuple[int, slice, int]:
        """:func:`due_modes` of the next step."""
        return due_modes([self._sizes[axis] for axis in self.axes[0].modes], period, self.step)

    def turn(self, period: int) -> Turn:
        """The modes of the next step."""
        key = (period, self.step % period)
        if key not in self._turns:
            due = self.due(period)
            weights = [self._view(i, p.detach(), due) for i, p in enumerate(self.params)]
            means = [self._view(i, state["exp_avg"], due) for i, state in enumerate(self.states)]
            low_rank = None if self._low_rank is None else self._batch(self._low_rank, due)
            averages = Averages(self._batch(self._v, due), self._grams, self._bases, low_rank)
            self._turns[key] = Turn([self._pairs(x) for x in weights], means, averages)
        return self._turns[key]

    def _view(self, i: int, x: torch.Tensor, due: tuple[int, slice, int]) -> torch.Tensor:
        """Of a tensor of a parameter's shape the modes that move, in the batch's order; pairs of real numbers come last."""
        axes, pair = self.axes[i], self._layouts[i].find(PAIR)
        order = axes.order if pair < 0 else (*axes.order, pair)
        return _at(x.resolve_conj().permute(order), len(axes.order) - len(axes.modes), due, bool(axes.modes))

    def _pairs(self, x: torch.Tensor) -> torch.Tensor:
        """With parts on the last axis, a view."""
        return torch.view_as_real(x) if x.is_complex() else x if self._parts == 2 else x.unsqueeze(-1)

    def _batch(self, x: torch.Tensor, due: tuple[int, slice, int]) -> torch.Tensor:
        """A buffer as (layers, d_1, …, d_r, channels, *modes), of which the modes that move."""
        axes, (n, *sizes) = self.axes[0], x.shape
        n_layers, n_mixed = len(axes.layers), len(axes.mixed)
        mixed, rest = sizes[n_layers : n_layers + n_mixed] or [1], sizes[n_layers + n_mixed :]
        channels, modes = prod(rest[: len(axes.channels)]), rest[len(axes.channels) :]
        x = x.view(n * prod(sizes[:n_layers]), *mixed, channels, *modes)
        return _at(x, len(mixed) + 2, due, bool(modes))

    def _opened(self, x: torch.Tensor) -> torch.Tensor:
        """A batch (layers, d_1, …, d_r, parts, channels, *modes) as (parameters, *axes of one, parts), a view."""
        axes = self.axes[0]
        modes = x.shape[x.ndim - len(axes.modes) :]
        layers, mixed, channels = ([self._sizes[axis] for axis in own] for own in axes[:3])
        x = x.view(len(self.params), *layers, *mixed, self._parts, *channels, *modes)
        return x.movedim(self._parts_at, -1)

    def read(self, views: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        """A batch of one view for each parameter; of second moments ``like`` it has the sizes."""
        at = max(1, len(self.axes[0].mixed)) + 1
        out = like.new_empty(*like.shape[:at], self._parts, *like.shape[at:])
        target = self._opened(out)
        if self._parts == 1:
            copy_each_(list(target.squeeze(-1)), views)
            return out
        # Operators on parts that alternate in memory take a CPU up to ten times as long as on parts that lie apart, and
        # complex numbers are copied seven times as fast as pairs.
        pairs = torch.empty(target.shape, dtype=out.dtype, device=out.device)
        copy_each_(list(torch.view_as_complex(pairs) if views[0].is_complex() else pairs), views)
        target.copy_(pairs)
        return out

    def gradients(self, period: int, like: torch.Tensor) -> torch.Tensor:
        """The batch of gradients of the modes that move."""
        due = self.due(period)
        return self.read([self._view(i, p.grad, due) for i, p in enumerate(self.params) if p.grad is not None], like)

    def of_params(self, x: torch.Tensor) -> list[torch.Tensor]:
        """A batch as one tensor for each parameter, parts on the last axis."""
        return list(self._opened(x.contiguous()).contiguous())

    def of_modes(self, x: torch.Tensor) -> list[torch.Tensor]:
        """A number for each mode (layers, 1, …, 1, channels, *modes), to be multiplied onto the same."""
        axes = self.axes[0]
        layers, mixed, channels = ([self._sizes[axis] for axis in own] for own in axes[:3])
        modes = x.shape[x.ndim - len(axes.modes) :]
        return list(x.reshape(len(self.params), *layers, *(1,) * len(mixed), *channels, *modes, 1))

    def _of_layers(self, values: list[float]) -> float | torch.Tensor:
        """One number if all are equal, else one for each layer."""
        if len(set(values)) == 1:
            return values[0]
        axes = self.axes[0]
        x = torch.tensor(values, dtype=self._v.dtype, device=self._v.device)
        x = x.repeat_interleave(prod(self._sizes[axis] for axis in axes.layers))
        return x.view(-1, *(1,) * (len(self.first) + 1 + len(axes.modes)))


def _at(x: torch.Tensor, at: int, due: tuple[int, slice, int], has_modes: bool) -> torch.Tensor:
    """The modes that move, of a tensor whose axes of modes begin at ``at``."""
    return x[(slice(None),) * (at + due[0]) + (due[1],)] if has_modes else x


def changed(
    p: torch.Tensor, state: Mapping[str, Any], layout: str, period: int, step: int, renews: bool
) -> list[torch.Tensor]:
    """What a step changes of a parameter and of its state, as real views: of weights and second moments the modes that move."""
    axes = axes_of(p, layout)
    plain = [axis for axis, letter in enumerate(layout) if letter != PAIR]
    due = due_modes([p.shape[axis] for axis in axes.modes], period, step)
    at = len(axes.order) - len(axes.modes)
    weights = as_real(p.detach()).permute(*axes.order, *sorted({*range(as_real(p).ndim)} - {*axes.order}))
    second = state["exp_avg_sq"].permute([plain.index(axis) for axis in axes.order])
    names = [f"gram_{axis}" for axis in axes.mixed] + [f"basis_{axis}" for axis in axes.mixed if renews] + ["low_rank"]
    moved = [_at(x, at, due, bool(axes.modes)) for x in (weights, second)]
    return moved + [state[name] for name in names if name in state]
