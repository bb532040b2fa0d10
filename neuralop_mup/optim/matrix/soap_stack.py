"""Stacked parameters as MuSOAP's direction reads them, and the pieces in which it works on their modes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from neuralop_mup.optim.matrix.scratch import Scratch, piece_size
from neuralop_mup.optim.matrix.soap_direction import SoapState
from neuralop_mup.optim.matrix.stack import Comb, Stack
from neuralop_mup.torch_private import copy_each_

__all__ = ["Piece", "SoapStack"]


@dataclass(frozen=True)
class Piece:
    """Some of the modes that move at a step.

    Attributes
    ----------
    comb : Comb
        Which.
    shape : tuple of int
        (layers, d_1, …, d_r, parts, *free, channels, *modes).
    state : SoapState
        Their averages.
    weights, means : list of torch.Tensor
        Of each slot its weights, with parts on the last axis, and its momentum; views.
    """

    comb: Comb
    shape: tuple[int, ...]
    state: SoapState
    weights: list[torch.Tensor]
    means: list[torch.Tensor]


class SoapStack:
    """A stack's tensors in the shapes of :mod:`neuralop_mup.optim.matrix.soap_direction`.

    Parameters
    ----------
    stack : Stack
        With buffers for second moments, Gram matrices, bases and ranks.
    momentum : str
        What the states call it.
    """

    def __init__(self, stack: Stack, momentum: str) -> None:
        (self.layers, self.based, self.free, self.channels, self.modes), _ = stack.key
        self._slots, self._averages, self._momentum = stack.slots, stack.buffers, momentum
        self._pieces: dict[tuple[int, int], list[Piece]] = {}
        self.n_layers = len(stack.slots) * prod(self.layers)
        self.n_parts, self._parts_at = stack.slots[0].n_parts, 1 + len(self.layers) + len(self.based)
        self.grams, self.bases = self._squares("gram"), self._squares("basis")
        scales = [slot.scale for slot in stack.slots]
        self.scale = scales[0] if len(set(scales)) == 1 else self._of_layers(scales)

    def _squares(self, what: str) -> list[torch.Tensor | None]:
        """(layers, d, d) for each axis with a basis; None for the one of size 1 that stands for none."""
        return [self._averages[f"{what} {i}"].flatten(0, 1) for i in range(len(self.based))] or [None]

    @property
    def like(self) -> torch.Tensor:
        """A tensor of the type and on the device of all of this."""
        return self._averages["exp_avg_sq"]

    def pieces(self, comb: Comb) -> list[Piece]:
        """The modes of a comb, in pieces small enough for a cache."""
        if comb.key not in self._pieces:
            n = -(-prod(self._shape(comb)) // piece_size(self.like.device))
            self._pieces[comb.key] = [self._piece(piece) for piece in comb.pieces(n)]
        return self._pieces[comb.key]

    def _piece(self, comb: Comb) -> Piece:
        weights = [slot.view(slot.p.detach(), comb) for slot in self._slots]
        means = [slot.view(slot.state[self._momentum], comb) for slot in self._slots]
        return Piece(comb, self._shape(comb), self._state(comb), [self._pairs(x) for x in weights], means)

    def _pairs(self, x: torch.Tensor) -> torch.Tensor:
        """With parts on the last axis, a view."""
        return torch.view_as_real(x) if x.is_complex() else x if self.n_parts == 2 else x.unsqueeze(-1)

    def read(self, views: list[torch.Tensor], out: torch.Tensor, scratch: Scratch) -> None:
        """Copy a piece of one tensor for each slot, with real and imaginary parts apart."""
        target = self._opened(out).movedim(self._parts_at, -1)
        if self.n_parts == 1:
            copy_each_(list(target.squeeze(-1)), views)
            return
        # Operators on parts that alternate in memory take a CPU up to ten times as long as on parts that lie apart, and
        # complex numbers are copied seven times as fast as pairs.
        pairs = scratch.take("turned", target.shape, out)
        copy_each_(list(torch.view_as_complex(pairs) if views[0].is_complex() else pairs), views)
        target.copy_(pairs)

    def gradients(self, pieces: list[Piece], scratch: Scratch) -> list[torch.Tensor]:
        """Of all pieces."""
        sizes = [prod(piece.shape) for piece in pieces]
        memory = scratch.take("gradients", (sum(sizes),), self.like).split(sizes)
        found = [own.view(piece.shape) for own, piece in zip(memory, pieces, strict=True)]
        for piece, x in zip(pieces, found, strict=True):
            self.read([slot.view(slot.grad, piece.comb) for slot in self._slots], x, scratch)
        return found

    def _shape(self, comb: Comb) -> tuple[int, ...]:
        """(layers, d_1, …, d_r, parts, *free, channels, *modes)."""
        modes = self._slots[0].split(comb)[-1]
        return (self.n_layers, *(self.based or (1,)), self.n_parts, *self.free, prod(self.channels), *modes)

    def _opened(self, x: torch.Tensor) -> torch.Tensor:
        """Such a tensor as (slots, *layers, *based, parts, *free, *channels, *modes), a view."""
        modes = x.shape[x.ndim - len(self.modes) :]
        return x.view(len(self._slots), *self.layers, *self.based, self.n_parts, *self.free, *self.channels, *modes)

    def of_slots(self, x: torch.Tensor, free: torch.Tensor) -> list[torch.Tensor]:
        """Such a tensor as one for each slot, parts on the last axis, in memory of as many numbers that is free."""
        pairs = self._opened(x).movedim(self._parts_at, -1)
        return list(pairs if self.n_parts == 1 else free.view(pairs.shape).copy_(pairs))

    def of_modes(self, x: torch.Tensor) -> list[torch.Tensor]:
        """A number for each mode (layers, channels, *modes), to be multiplied onto the same."""
        ones = (1,) * len(self.based + self.free)
        return list(x.view(len(self._slots), *self.layers, *ones, *self.channels, *x.shape[2:], 1))

    def _of_layers(self, values: list[float]) -> torch.Tensor:
        """A number for each slot, for all layers that it has."""
        like, ndim = self.like, 1 + len(self.based or (1,)) + len(self.free) + len(self.modes)
        x = torch.tensor(values, dtype=like.dtype, device=like.device).repeat_interleave(prod(self.layers))
        return x.view(-1, *(1,) * ndim)

    def _state(self, comb: Comb) -> SoapState:
        """Of the modes that move, as views."""
        n, channels = self.n_layers, prod(self.channels)
        v, low_rank = self.like, self._averages.get("low_rank")
        v = v.view(n, *(self.based or (1,)), *self.free, channels, *self.modes)
        if low_rank is not None:
            low_rank = self._due(low_rank.view(n, channels, *self.modes), comb)
        return SoapState(self._due(v, comb), self.grams, self.bases, low_rank)

    def _due(self, x: torch.Tensor, comb: Comb) -> torch.Tensor:
        at = x.ndim - len(self.modes) + comb.axis
        return x[(slice(None),) * at + (comb.due,)] if self.modes else x
