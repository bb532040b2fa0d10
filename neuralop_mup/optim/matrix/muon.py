"""The polar factor of the momentum, mode by mode."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from numbers import Real
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from neuralop_mup.errors import MupError
from neuralop_mup.optim.matrix.layouts import block_shape, order, plain_layout
from neuralop_mup.optim.matrix.muon_direction import MuonSettings, muon_direction
from neuralop_mup.optim.matrix.optimizer import BASE_DEPTH, MatrixOptimizer
from neuralop_mup.optim.matrix.scratch import Scratch, chunk_size
from neuralop_mup.optim.matrix.stack import Slot, Stack
from neuralop_mup.optim.matrix.tensors import as_real, wide_type
from neuralop_mup.torch_private import copy_each_, mul_each_, sub_each_
from neuralop_mup.validation import check_count, check_decay, check_flag

__all__ = ["LR", "MuMuon"]

LR = 2e-2
PERIOD = 2
DAMPING = 0.7


class MuMuon(MatrixOptimizer):
    r"""Steepest descent under the operator norm, mode by mode (Muon for Fourier kernels), and AdamW for the rest.

    The momentum of each mode's in×out block is replaced by its polar factor, times √(out/in): every mode's update then
    has operator norm lr·√(out/in) (in its turn, ``period`` times that), at any width and any number of modes, so that
    neither a width nor a mode rule is needed for its learning rate (docs/explain/updates.md). With ``damping``, as by
    default, the root mean square of an update's singular values has this size. Hidden linear layers and 1×1 convolutions are
    treated alike; input, readout and vectors are trained by AdamW with the learning rates of the model's plan.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model with Fourier kernels. The plan's initialisation stays in force, and so do its learning-rate
        multipliers for what AdamW trains; those of kernels and hidden layers do not apply here.
    lr : float, default 0.02
        Size of an update of a kernel's block or a hidden layer, measured as the operator norm between root-mean-square
        sizes of features, in a model of ``base_depth`` Fourier layers; at most 1. The same at every width and number of
        modes, but to be tuned at one: the best was 0.04 to 0.08 in short runs, 0.02 in longer ones
        (docs/explain/updates.md).
    aux_lr : float, optional
        AdamW's learning rate at base; 0.004 if not given. It does not follow ``lr``.
    momentum : float, default 0.95
        Decay of the momentum buffer, m ← momentum · m + (1 − momentum) · gradient.
    nesterov : bool, default True
        Orthogonalize momentum · m + (1 − momentum) · gradient instead of m.
    period : int, default 2
        Steps in which every mode has its turn: a step moves every ``period``-th mode, ``period`` times as far. This
        divides the cost of orthogonalization; momentum gathers at every step. With 1 all modes move at every step.
    damping : float, default 0.7
        From 0 to 1: the update's singular values are 1 − damping · σ / bound instead of 1, with σ those of the momentum,
        so that its dominant directions get less. Found by experiment, not derived: at 1,000 steps 0.7 ended below 0, which
        is Muon, on Burgers and Allen–Cahn, and level on Darcy (docs/evidence/optimizers.md).
    weight_decay : float, default 0.0
        Decoupled: a weight shrinks by lr · weight_decay of its group at each step. In AdamW's groups the plan's
        multiplier is divided out, as in :func:`neuralop_mup.param_groups`, so that this is the same at all sizes.
        A block whose gradient is zero is left alone, and one whose gradient is hardly more than rounding decays as little
        as it is moved.
    lr_mult : mapping, optional
        Multipliers by role: ``spectral`` and ``hidden`` of ``lr``, the others of ``aux_lr`` (and what has these two
        roles without being a matrix: the weights of a CP kernel's terms, stencils).
    base_depth : int or None, default 4
        Updates of matrices go as √(base_depth / depth), where depth is the model's number of Fourier layers: those of all
        layers add up, and four times as many want half the learning rate (measured: docs/evidence/transfer.md). The default
        is the number of layers that neuralop's FNO has by default. None leaves ``lr`` as it is at every depth.
    process_group : torch.distributed.ProcessGroup, optional
        Ranks that hold the same gradients (DDP's) and share the work: each orthogonalizes a part of the blocks and sends
        it to the others. By default every rank does everything. Not kept by copies and pickles of the optimizer.
    betas, eps, foreach, capturable, check
        As for :class:`~neuralop_mup.MuSOAP`.

    Raises
    ------
    MupError
        If the model is not parametrized, has no Fourier kernel, or a number is not usable; in :meth:`step`, if a gradient is
        not finite or its squares overflow, before anything is changed.

    Notes
    -----
    Groups carry ``name``, ``lr``, ``base_lr`` (``lr`` or ``aux_lr``, as it was given), ``lr_mult`` (over that),
    ``rule_mult`` and ``weight_decay``. So schedulers that scale work as they are, and one that gives all groups the same
    number is told of; those that cycle momentum cycle AdamW's ``betas`` alone. Float32 products are made in full
    precision, whatever torch is set to for others. ``torch.optim.Muon`` takes real 2-D parameters alone: kernels are
    complex and have modes, and the hidden linear layers of neuralop are convolution weights (out, in, 1).

    References
    ----------
    Jordan et al., "Muon", https://kellerjordan.github.io/posts/muon/, 2024. Bernstein & Newhouse, "Old Optimizer, New
    Norm", arXiv:2409.20325. Amsel et al., "The Polar Express", arXiv:2505.16932.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((16,), 1, 1, 32), base={"hidden_channels": 16, "n_modes": (8,)})
    >>> optimizer = nm.MuMuon(model, lr=0.02)
    >>> {group["name"]: group["lr"] for group in optimizer.param_groups}
    {'hidden': 0.02, 'spectral': 0.02, 'aux input+vector': 0.004, 'aux readout': 0.002}
    """

    sharded_state: ClassVar[tuple[str, ...]] = ("momentum_buffer",)
    usual_lr: ClassVar[float] = LR

    def __init__(
        self,
        model: nn.Module,
        lr: float = LR,
        aux_lr: float | None = None,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        period: int = PERIOD,
        damping: float = DAMPING,
        weight_decay: float = 0.0,
        lr_mult: Mapping[str, float] | None = None,
        base_depth: int | None = BASE_DEPTH,
        process_group: dist.ProcessGroup | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        foreach: bool | None = None,
        capturable: bool = False,
        check: str | None = None,
    ) -> None:
        check_decay("momentum", momentum)
        check_count("period", period, "steps")
        check_flag("nesterov", nesterov)
        if not (isinstance(damping, Real) and not isinstance(damping, bool) and 0 <= damping <= 1):
            raise MupError(f"damping is {damping!r}; give a number from 0 (the polar factor) to 1; {DAMPING} is usual.")
        super().__init__(
            model,
            lr,
            aux_lr,
            settings={"momentum": momentum, "nesterov": nesterov, "period": int(period), "damping": damping},
            weight_decay=weight_decay,
            lr_mult=lr_mult,
            base_depth=base_depth,
            process_group=process_group,
            betas=betas,
            eps=eps,
            foreach=foreach,
            capturable=capturable,
            check=check,
        )

    def new_state(self, p: torch.Tensor, layout: str, group: Mapping[str, Any]) -> dict[str, Any]:
        """One buffer."""
        buffer = torch.zeros_like(p, dtype=wide_type(p), memory_format=torch.preserve_format)
        return {"step": 0, "momentum_buffer": buffer}

    def slot(self, p: torch.Tensor, state: dict[str, Any], layout: str) -> tuple[Slot, tuple]:
        """Axes of a block as those of its shorter and of its longer side, and what slots of one stack have in common."""
        letters, (n_in, n_out) = plain_layout(layout), block_shape(p, layout)
        sides = "io" if n_in <= n_out else "oi"
        slot = Slot(p, state, layout, tuple(order(letters, letter) for letter in f"l{sides}cb"))
        if _is_single(p, layout):
            return slot, ("single", slot.n_parts)
        layers, _, _, channels, modes = slot.split()
        return slot, (min(n_in, n_out), max(n_in, n_out), layers, channels, modes, slot.n_parts)

    def move(self, stack: Stack, group: Mapping[str, Any], scratch: Scratch) -> None:
        """p ← p − lr √(out/in) · direction."""
        slots, blocks = stack.slots, _blocks(stack, group)
        means = [slot.state["momentum_buffer"] for slot in slots]
        like = torch.empty(0, dtype=wide_type(means[0]).to_real(), device=means[0].device)
        gradient, x = (scratch.take(name, blocks.shape, like) for name in ("gradient", "blocks"))
        blocks.read([slot.grad for slot in slots], gradient)
        blocks.read(means, x)
        if group["nesterov"]:
            x.lerp_(gradient, 1 - group["momentum"])
        lr = group["lr"] * stack.comb.period  # a mode moves as far in one step as it would have in all that it waited
        settings = MuonSettings(group["damping"], blocks.layers, slots[0].grad.dtype, chunk_size(like.device))
        share = muon_direction(x, gradient, settings, blocks.scales(like) * lr, scratch)
        weights = blocks.weights
        if group["weight_decay"] != 0:
            kept = (1 - lr * group["weight_decay"] * share).view(-1, 1, 1, 1).expand(x.shape)
            mul_each_(weights, blocks.opened(kept))
        sub_each_(weights, blocks.opened(x))

    def adopt(self, stack: Stack) -> None:
        """Nothing: a momentum is as its parameter is."""

    def moved(self, slot: Slot, group: Mapping[str, Any], step: int) -> list[torch.Tensor]:
        """The comb's weights."""
        return [as_real(slot.view(slot.p.detach(), slot.comb(group["period"], step)))]


def _is_single(p: torch.Tensor, layout: str) -> bool:
    """Whether a parameter is one matrix. They are few beside kernels: those of all shapes go into one stack, filled up with
    zeros."""
    return sorted(plain_layout(layout).replace("l", "")) == ["i", "o"] and min(block_shape(p, layout)) > 1


def _blocks(stack: Stack, group: Mapping[str, Any]) -> _Blocks:
    """Those of this step; to what size matrices are filled up does not depend on which of them this process moves."""
    key = stack.comb.key
    if key not in stack.constants:
        members = [pair for pair in zip(group["params"], group["layouts"], strict=True) if _is_single(*pair)]
        largest = [max(sides) for sides in zip(*(sorted(block_shape(*pair)) for pair in members), strict=True)]
        stack.constants[key] = _Blocks(stack, largest if stack.key[0] == "single" else None)
    return stack.constants[key]


class _Blocks:
    """How the slots of a stack lie in one batch of blocks (blocks, parts, m, n), m ≤ n."""

    def __init__(self, stack: Stack, size: list[int] | None) -> None:
        self._slots, self._comb = stack.slots, stack.comb
        self._split = [slot.split(stack.comb) for slot in stack.slots]
        sides = [(prod(first), prod(second)) for _, first, second, _, _ in self._split]
        self._counts = [prod(layers) * prod(channels) * prod(modes) for layers, _, _, channels, modes in self._split]
        self.shape = (sum(self._counts), stack.slots[0].n_parts, *(size or sides[0]))
        self.are_padded = any(side != self.shape[2:] for side in sides)
        self.layers = sum(prod(layers) for layers, *_ in self._split)
        self._scales: torch.Tensor | None = None
        self.weights = self._pairs([slot.p.detach() for slot in stack.slots])

    def opened(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Such a batch as (*sizes, parts) of each slot, views."""
        found = []
        for (layers, first, second, channels, modes), own in zip(self._split, x.split(self._counts), strict=True):
            own = own[:, :, : prod(first), : prod(second)]
            own = own.reshape(*layers, *channels, *modes, self.shape[1], *first, *second)
            n, lead = len(layers), len(layers + channels + modes)
            found.append(own.permute(*range(n), *range(lead + 1, own.ndim), *range(n, lead), lead))
        return found

    def read(self, tensors: list[torch.Tensor], out: torch.Tensor) -> None:
        """One tensor for each slot."""
        if self.are_padded:
            out.zero_()
        copy_each_(self.opened(out), self._pairs(tensors))

    def _pairs(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """The modes that move of one tensor for each slot, with parts on the last axis; views."""
        views = [slot.view(x, self._comb) for slot, x in zip(self._slots, tensors, strict=True)]
        views = [torch.view_as_real(x) if x.is_complex() else x for x in views]
        return views if self.shape[1] == 2 else [x.unsqueeze(-1) for x in views]

    def scales(self, like: torch.Tensor) -> torch.Tensor:
        """√(out/in) of each block."""
        if self._scales is None:
            each = torch.tensor([slot.scale for slot in self._slots], dtype=like.dtype)
            self._scales = each.repeat_interleave(torch.tensor(self._counts)).to(like.device)
        return self._scales
