r"""Match the channels of two trained Fourier neural operators, and measure the loss on the line between them.

If all layers that read or write a set of channels permute it in the same way, the model's output does not change. Two models
may therefore be equal up to a permutation, although their weights differ. With the weights :math:`\theta(t) = \theta_1 + t
(\theta_2 - \theta_1)` the loss *barrier* is

.. math:: B(\theta_1, \theta_2) = \sup_{t \in [0, 1]} \bigl( L(\theta(t)) - (1 - t)\, L(\theta_1) - t\, L(\theta_2) \bigr) .

Conjecture: for two models found by SGD there is a permutation π with :math:`B(\theta_1, \pi(\theta_2)) \approx 0`.

Sources: STAT 946, lecture 12, section 3.1 (Marty Mukherjee, 22 October 2025), which sets the losses of the two models to
zero; Entezari et al., "The Role of Permutation Invariance in Linear Mode Connectivity of Neural Networks", ICLR 2022,
arXiv:2110.06296, for the conjecture and equation 1 (B as above). Ainsworth, Hayase, Srinivasa, "Git Re-Basin", ICLR 2023,
arXiv:2209.04836, Algorithm 1, for the search of π: :func:`match_channels` maximizes the inner product of all weights over
one set of channels at a time.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from neuralop.models import FNO
from torch import nn

from neuralop_mup.core.unwrap import unwrap
from neuralop_mup.errors import MupError
from neuralop_mup.validation import check_count

# The axes that hold one set of channels: (parameter, axis).
Axes = list[tuple[str, int]]


@dataclass(frozen=True)
class Barrier:
    """The loss along the line between two models.

    Attributes
    ----------
    positions : list of float
        t, from 0 (the first model) to 1 (the second).
    losses : list of float
        The loss at each t.

    Examples
    --------
    >>> import neuralop_mup as nm
    >>> nm.Barrier([0.0, 0.5, 1.0], [0.0, 3.0, 2.0]).height
    2.0
    """

    positions: list[float]
    losses: list[float]

    @property
    def height(self) -> float:
        """B, the largest excess over the straight line between the losses of the two models.

        Returns
        -------
        float
            At least 0.

        Examples
        --------
        >>> nm.Barrier([0.0, 1.0], [0.5, 0.1]).height
        0.0
        """
        first, last = self.losses[0], self.losses[-1]
        pairs = zip(self.positions, self.losses, strict=True)
        return max(0.0, *(loss - (1 - t) * first - t * last for t, loss in pairs))


def loss_barrier(first: nn.Module, second: nn.Module, loss: Callable[[nn.Module], float], points: int = 25) -> Barrier:
    """Compute the loss on the straight line between the weights of two models.

    Parameters
    ----------
    first, second : torch.nn.Module
        Models with the same parameters, by name and shape. They are not changed.
    loss : callable
        ``loss(model)`` returns the loss of a model as a number. It is called without gradients.
    points : int, default 25
        Number of positions, at least 2.

    Returns
    -------
    Barrier
        Positions and losses. ``height`` is the barrier.

    Raises
    ------
    MupError
        If the parameters differ in name or shape.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> first, second, x = FNO((4,), 1, 1, 8), FNO((4,), 1, 1, 8), torch.randn(2, 1, 16)
    >>> barrier = nm.loss_barrier(first, nm.match_channels(second, first), lambda model: model(x).square().mean().item())
    >>> len(barrier.losses)
    25
    """
    check_count("points", points, least=2)
    moved = copy.deepcopy(first)
    ends: list[dict[str, torch.Tensor]] = [dict(model.named_parameters()) for model in (first, second)]
    _check_same(*ends)
    positions = torch.linspace(0, 1, points, dtype=torch.float64).tolist()
    losses = []
    with torch.no_grad():
        for t in positions:
            for name, p in moved.named_parameters():
                p.copy_((1 - t) * ends[0][name] + t * ends[1][name])
            losses.append(float(loss(moved)))
    return Barrier(positions, losses)


def match_channels(model: nn.Module, reference: nn.Module, starts: int = 20) -> nn.Module:
    """Return a copy of a Fourier neural operator with its channels permuted to match those of another.

    The copy computes the same function. A permuted copy of the reference is matched exactly if no two channels have equal
    weights.

    These sets of channels are permuted independently: the hidden channels of lifting, projection and of each block's channel
    MLP, and the channels between the layers. A skip that acts on each channel separately (soft gating, identity) gives its
    input and its output the same permutation. With neuralop's default skips, all blocks have one permutation for their
    inputs and outputs, and one each for the channels between convolution and channel MLP.

    Parameters
    ----------
    model, reference : neuralop.models.FNO
        Two models of the same shapes, with dense kernels and no norm with parameters.
    starts : int, default 20
        Number of searches. Each ends at a local maximum of the inner product, and the highest one is used. The first search
        starts with a pass from the input to the output, the others start from random permutations.

    Returns
    -------
    torch.nn.Module
        The permuted copy of ``model``.

    Raises
    ------
    MupError
        If a model is not an FNO, has layers that are not supported, or the shapes differ.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model, reference, x = FNO((4,), 1, 1, 8), FNO((4,), 1, 1, 8), torch.randn(2, 1, 16)
    >>> matched = nm.match_channels(model, reference)
    >>> torch.allclose(model(x), matched(x), atol=1e-5)
    True
    """
    check_count("starts", starts)
    matched = copy.deepcopy(model)
    sets = channel_sets(matched)
    ours, theirs = ({name: p.detach() for name, p in unwrap(net).named_parameters()} for net in (matched, reference))
    _check_same(ours, theirs)
    found = []
    for seed in range(starts):
        weights, generator = {name: p.clone() for name, p in ours.items()}, torch.Generator().manual_seed(seed)
        unmatched = {axis for axes in sets for axis in axes}
        for axes in sets:
            name, axis = axes[0]
            permutation = torch.randperm(weights[name].shape[axis], generator=generator)
            if seed == 0:  # use only weights with all other axes matched
                others = {(name, k): {(name, j) for j in range(ours[name].ndim) if j != k} for name, k in axes}
                permutation = _assign(weights, theirs, [known for known in axes if not others[known] & unmatched])
            _permute(weights, axes, permutation)
            unmatched.difference_update(axes)
        # Improvements exceed the rounding error, so the loop ends.
        while sum(_improve(weights, theirs, axes) for axes in sets):
            pass
        found.append((_product(weights, theirs), weights))
    for name, p in max(found, key=lambda pair: pair[0])[1].items():
        ours[name].copy_(p)
    return matched


def channel_sets(model: nn.Module) -> list[Axes]:
    """Return the sets of channels that may be permuted independently, from input to output."""
    net = unwrap(model)
    if not isinstance(net, FNO):
        raise MupError(f"Channels can be matched for neuralop's FNO, but this is {type(net).__name__}.")
    sets: list[Axes] = []
    described: set[str] = set()

    def add(name: str, *channels: Axes | None) -> None:
        if name in shapes:
            described.add(name)
            for axis, members in enumerate(channels):
                if members == []:  # a new set
                    sets.append(members)
                if members is not None:
                    members.append((name, axis))

    def add_mlp(name: str, reads: Axes | None, writes: Axes | None) -> None:
        layers = net.get_submodule(name).fcs
        for i in range(len(layers)):
            out: Axes | None = writes if i == len(layers) - 1 else []
            add(f"{name}.fcs.{i}.weight", out, reads)
            add(f"{name}.fcs.{i}.bias", out)
            reads = out

    def add_skip(name: str, reads: Axes, writes: Axes) -> None:
        add(f"{name}.conv.weight", writes, reads)
        add(f"{name}.weight", None, writes)

    shapes = {name: p.shape for name, p in net.named_parameters()}
    blocks = net.fno_blocks
    hidden: Axes = []
    add_mlp("lifting", None, hidden)
    for i, conv in enumerate(blocks.convs):
        reads, name = hidden, f"fno_blocks.convs.{i}"
        middle = reads if conv.separable or _per_channel(blocks.fno_skips, i) else []
        add(f"{name}.weight.tensor", *([middle] if conv.separable else [reads, middle]))
        add(f"{name}.bias", middle)
        add_skip(f"fno_blocks.fno_skips.{i}", reads, middle)
        hidden = middle
        if blocks.use_channel_mlp:
            hidden = reads if _per_channel(blocks.channel_mlp_skips, i) else []
            add_mlp(f"fno_blocks.channel_mlp.{i}", middle, hidden)
            add_skip(f"fno_blocks.channel_mlp_skips.{i}", reads, hidden)
    add_mlp("projection", hidden, None)
    if unknown := [name for name, shape in shapes.items() if name not in described and shape]:
        raise MupError(
            f"Channels cannot be matched: {unknown[0]!r} is not described. Use dense kernels without norm weights."
        )
    return sets


def _per_channel(skips: nn.ModuleList | None, i: int) -> bool:
    """Whether a skip acts on each channel separately, so that its input and output share a permutation."""
    return skips is not None and not hasattr(skips[i], "conv")


def _check_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    shapes = [{name: tuple(p.shape) for name, p in model.items()} for model in (ours, theirs)]
    if different := [name for name in shapes[0] | shapes[1] if shapes[0].get(name) != shapes[1].get(name)]:
        found = [shape.get(different[0]) for shape in shapes]
        raise MupError(f"The models differ: {different[0]!r} has the shapes {found[0]} and {found[1]}. Use equal sizes.")


def _assign(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], axes: Axes) -> torch.Tensor:
    """Return the permutation of our channels with the largest inner product with theirs."""
    from scipy.optimize import linear_sum_assignment

    gain = sum(_rows(theirs[name], axis) @ _rows(ours[name], axis).T for name, axis in axes)
    return torch.as_tensor(linear_sum_assignment(torch.as_tensor(gain).cpu().numpy(), maximize=True)[1])


def _rows(x: torch.Tensor, axis: int) -> torch.Tensor:
    """Return one row of real numbers per channel, in float64."""
    x = x.movedim(axis, 0)
    return (torch.view_as_real(x) if x.is_complex() else x).reshape(len(x), -1).double()


def _improve(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], axes: Axes) -> bool:
    """Permute one set of channels if this increases the inner product with theirs."""
    before = {name: ours[name].clone() for name, _ in axes}
    _permute(ours, axes, _assign(ours, theirs, axes))
    gain = _product({name: ours[name] for name in before}, theirs) - _product(before, theirs)
    if not (better := gain > 1e-9 * _product(before, before)):
        ours.update(before)
    return better


def _product(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    return sum((_rows(p, 0) * _rows(theirs[name], 0)).sum().item() for name, p in ours.items())


def _permute(weights: dict[str, torch.Tensor], axes: Axes, permutation: torch.Tensor) -> None:
    """Permute channels in place."""
    for name, axis in axes:
        weights[name].copy_(weights[name].index_select(axis, permutation.to(weights[name].device)))
