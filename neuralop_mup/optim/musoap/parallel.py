"""Distribute matrix updates among processes. Each parameter has an owner that updates it and sends the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist

from neuralop_mup.errors import MupError
from neuralop_mup.optim.musoap.stacks import PAIR, Members, State, as_real, local_reals, upcast


def owners(sizes: Sequence[int], world: int) -> list[int]:
    """Assign each parameter, in order of decreasing size, to the process with the least work."""
    loads, owner_of = [0] * world, [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owner_of[i] = loads.index(min(loads))
        loads[owner_of[i]] += sizes[i]
    return owner_of


def check_equal(rates: Sequence[float], steps: int, device: torch.device, group: dist.ProcessGroup) -> None:
    """Raise MupError unless the learning rates and the number of steps are equal on all processes."""
    own = torch.tensor([*rates, steps], dtype=torch.float64, device=device)
    ends = torch.stack([-own, own])
    dist.all_reduce(ends, dist.ReduceOp.MAX, group=group)
    least, most = (-ends[0]).tolist(), ends[1].tolist()
    if least != most:
        low, high = max(zip(least[:-1], most[:-1], strict=True), key=lambda ends: ends[1] - ends[0])
        raise MupError(
            f"Processes have different learning rates (from {low:.3g} to {high:.3g}) or steps (from {least[-1]:.0f} to "
            f"{most[-1]:.0f}), so their weights would diverge. Pass the same lr, steps and start_error to all processes. "
            "Average start_error over the processes first."
        )


def updated_tensors(p: torch.Tensor, state: State) -> list[torch.Tensor]:
    """Return the tensors that an update changes: the weights, the second moments, and then all others.

    Momenta are not included, because every process updates them.
    """
    of_bases = [x for name, x in state.items() if torch.is_tensor(x) and not name.startswith("exp_avg")]
    return local_reals([p.detach(), state["exp_avg_sq"], *of_bases])


def updated_modes(p: torch.Tensor, state: State, layout: str, period: int) -> list[torch.Tensor]:
    """Return :func:`updated_tensors`, with weights and second moments restricted to the modes of the last step."""
    weights, second, *of_bases = updated_tensors(p, state)
    modes = [axis for axis, letter in enumerate(layout) if letter == "b"]
    if modes:
        axis = max(modes, key=lambda axis: p.shape[axis])
        period = min(period, p.shape[axis])
        due = slice((state["step"] - 1) % period, None, period)
        weights = weights[(slice(None),) * axis + (due,)]
        second = second[(slice(None),) * (axis - layout[:axis].count(PAIR)) + (due,)]
    return [weights, second, *of_bases]


def broadcast_updates(sent: Iterable[tuple[int, Sequence[torch.Tensor]]], group: dist.ProcessGroup) -> None:
    """Send real tensors from their owners to all processes, in one message per owner and dtype."""
    of_owner: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}
    for owner, tensors in sent:
        for tensor in tensors:
            of_owner.setdefault((owner, tensor.dtype), []).append(tensor)
    for (owner, _), tensors in sorted(of_owner.items(), key=lambda item: (item[0][0], str(item[0][1]))):
        message = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.broadcast(message, dist.get_global_rank(group, owner), group=group)
        if owner != group.rank():
            for tensor, new in zip(tensors, message.split([tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(new.view(tensor.shape))


def gather_step_scatter(
    members: Members,
    states: MutableMapping[Any, State],
    sharded: Sequence[str],
    update: Callable[[Members, Mapping], None],
) -> None:
    """Gather each sharded parameter on its owner, update it there, and send the shards back.

    This takes two all-to-all exchanges. Bases are not sharded.
    """
    place = _Placement(members)
    owner_of = owners([p.numel() for p, _ in members], place.world)
    mine = [i for i, owner in enumerate(owner_of) if owner == place.rank]
    tensors = [[p.detach(), p.grad, *(states[p][name] for name in sharded)] for p, _ in members]
    to_owner = place.exchange(
        [[x.to_local() for i, owner in enumerate(owner_of) if owner == to for x in tensors[i]] for to in range(place.world)],
        [[place.shape_of(x, rank) for i in mine for x in tensors[i]] for rank in range(place.world)],
    )
    wholes = [torch.cat(pieces, place.axis) for pieces in zip(*to_owner, strict=True)]
    updated: dict[int, tuple[torch.Tensor, State]] = {}
    for i in mine:
        gathered = [(wholes.pop(0), like) for like in tensors[i]]
        p, p_grad, *averages = ((torch.view_as_complex(x) if y.is_complex() else x).to(y.dtype) for x, y in gathered)
        p.grad = p_grad
        updated[i] = p, {**states[members[i][0]], **dict(zip(sharded, averages, strict=True))}
    update([(p, members[i][1]) for i, (p, _) in updated.items()], dict(updated.values()))

    own = [updated_tensors(p, states[p]) for p, _ in members]
    from_owner = place.exchange(
        [[part for i in mine for part in place.parts_for(to, updated_tensors(*updated[i]))] for to in range(place.world)],
        [[x.shape for i, o in enumerate(owner_of) if o == rank for x in own[i]] for rank in range(place.world)],
    )
    for (p, _), owner, kept in zip(members, owner_of, own, strict=True):
        for x in kept:
            x.copy_(from_owner[owner].pop(0))
        states[p]["step"] += 1


class _Placement:
    """Placement of the parameters of one group, which are sharded along one axis over one mesh dimension."""

    def __init__(self, members: Members) -> None:
        first = members[0][0]
        places: list[Any] = [getattr(p, "placements", None) for p, _ in members]
        along = [i for i, place in enumerate(places[0] or ()) if place.is_shard()]
        is_simple = len(along) == 1 and type(places[0][along[0]]).__name__ == "Shard"
        if not is_simple or any(place != places[0] for place in places):
            raise MupError(
                "All parameters of a group must be sharded along the same axis of one mesh dimension, got placements "
                f"{sorted(set(map(str, places)))}. Use neuralop_mup.shard(model) or torch's fully_shard."
            )
        self.axis: int = first.placements[along[0]].dim
        self._group = first.device_mesh.get_group(along[0])
        self.world, self.rank = self._group.size(), self._group.rank()
        self._like = upcast(local_reals([first]))[0]

    def _bounds(self, n: int, rank: int) -> tuple[int, int]:
        """Return the range of n entries that a process holds, following torch.chunk."""
        size = -(-n // self.world)
        return min(rank * size, n), min((rank + 1) * size, n)

    def shape_of(self, x: Any, rank: int) -> tuple[int, ...]:
        """Return the shape of a process's shard, with complex numbers as pairs."""
        start, end = self._bounds(x.shape[self.axis], rank)
        return (*x.shape[: self.axis], end - start, *x.shape[self.axis + 1 :], *((2,) if x.is_complex() else ()))

    def parts_for(self, rank: int, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return a process's shards of :func:`updated_tensors`. Only the first two tensors are sharded."""
        bounds = [self._bounds(x.shape[self.axis], rank) for x in tensors[:2]]
        divided = [x.narrow(self.axis, start, end - start) for x, (start, end) in zip(tensors, bounds, strict=False)]
        return [*divided, *tensors[2:]]

    def exchange(
        self, outgoing: Sequence[Sequence[torch.Tensor]], shapes: Sequence[Sequence[Sequence[int]]]
    ) -> list[list[torch.Tensor]]:
        """Send tensors to each process in one message, and receive tensors with the given shapes."""
        flat = [[as_real(x).to(self._like.dtype).reshape(-1) for x in own] for own in outgoing]
        sent = torch.cat([x for own in flat for x in own]) if any(flat) else self._like.new_empty(0)
        sizes = [[prod(shape) for shape in own] for own in shapes]
        received = self._like.new_empty(sum(map(sum, sizes)))
        dist.all_to_all_single(
            received, sent, [sum(own) for own in sizes], [sum(x.numel() for x in own) for own in flat], group=self._group
        )
        pieces = iter(received.split([size for own in sizes for size in own]))
        return [[next(pieces).view(shape) for shape in own] for own in shapes]
