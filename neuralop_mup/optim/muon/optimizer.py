"""The polar factor of the momentum, mode by mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from numbers import Real
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from neuralop_mup.errors import MupError
from neuralop_mup.optim.kernels.layouts import as_blocks, block_scale, block_shape, order, turn
from neuralop_mup.optim.kernels.noise import trust
from neuralop_mup.optim.kernels.optimizer import (
    BASE_DEPTH,
    Block,
    KernelOptimizer,
    as_real,
    chunk_size,
    inside_compiled,
    not_compiled,
)
from neuralop_mup.optim.kernels.scratch import Scratch
from neuralop_mup.optim.kernels.tensors import wide, wide_type
from neuralop_mup.optim.muon.newton_schulz import orthogonalize
from neuralop_mup.validation import check_count, check_decay, check_flag

__all__ = ["LR", "MuMuon"]

LR = 2e-2
PERIOD = 2
DAMPING = 0.7
_MOVING = "lcb"  # axes that number blocks, which take turns


class MuMuon(KernelOptimizer):
    r"""Steepest descent under the operator norm, mode by mode (Muon for Fourier kernels), and AdamW for the rest.

    The momentum of each mode's in×out block is replaced by its polar factor, times √(out/in): every mode's update then
    has operator norm lr·√(out/in) (in its turn, ``period`` times that), at any width and any number of modes, so that
    neither a width nor a mode rule is needed for its learning rate (docs/muon.md). With ``damping``, as by default, the root
    mean square of an update's singular values has this size. Hidden linear layers and 1×1
    convolutions are treated alike; input, readout and vectors are trained by AdamW with the learning rates of the model's
    plan.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model with Fourier kernels. The plan's initialisation stays in force, and so do its learning-rate
        multipliers for what AdamW trains; those of kernels and hidden layers do not apply here.
    lr : float
        Size of an update of a kernel's block or a hidden layer, measured as the operator norm between root-mean-square
        sizes of features, in a model of ``base_depth`` Fourier layers; at most 1. The same at every width and number of
        modes, but to be tuned at one: the best was 0.04 to 0.08 in short runs, 0.02 in longer ones (docs/muon.md).
    aux_lr : float, optional
        AdamW's learning rate at base; 0.004 if not given. It does not follow ``lr``.
    momentum : float
        Decay of the momentum buffer, m ← momentum · m + (1 − momentum) · gradient.
    nesterov : bool
        Orthogonalize momentum · m + (1 − momentum) · gradient instead of m.
    period : int
        Steps in which every mode has its turn: a step moves every ``period``-th mode, ``period`` times as far. This
        divides the cost of orthogonalization; momentum gathers at every step. With 1 all modes move at every step.
    damping : float
        From 0 to 1: the update's singular values are 1 − damping · σ / bound instead of 1, with σ those of the momentum,
        so that its dominant directions get less. Found by experiment, not derived: at 1,000 steps 0.7 ended below 0, which
        is Muon, on Burgers and Allen–Cahn, and level on Darcy (docs/optimizers.md).
    weight_decay : float
        Decoupled: a weight shrinks by lr · weight_decay of its group at each step. In AdamW's groups the plan's
        multiplier is divided out, as in :func:`neuralop_mup.param_groups`, so that this is the same at all sizes.
        A block whose gradient is zero (inactive modes) is left alone.
    lr_mult : mapping, optional
        Multipliers by role: ``spectral`` and ``hidden`` of ``lr``, the others of ``aux_lr`` (and what has these two
        roles without being a matrix: the weights of a CP kernel's terms, stencils).
    base_depth : int or None
        Updates of matrices go as √(base_depth / depth), where depth is the model's number of Fourier layers: those of all
        layers add up, and four times as many want half the learning rate (measured: docs/muon.md). The default, 4, is
        the number of layers that neuralop's FNO has by default. None leaves ``lr`` as it is at every depth.
    process_group : torch.distributed.ProcessGroup, optional
        Ranks that hold the same gradients (DDP's) and share the work: each orthogonalizes a part of the blocks and sends
        it to the others. By default every rank does everything. Not kept by copies and pickles of the optimizer.
    betas, eps : (float, float), float
        AdamW's.

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
        )

    def new_state(self, p: torch.Tensor, layout: str, group: Mapping[str, Any]) -> dict[str, Any]:
        """One buffer."""
        buffer = torch.zeros_like(p, dtype=wide_type(p), memory_format=torch.preserve_format)
        return {"step": 0, "momentum_buffer": buffer}

    def pack_key(self, p: torch.Tensor, layout: str) -> tuple:
        """Blocks of one shape, or of its transpose: the polynomials run on the shorter side."""
        return tuple(sorted(block_shape(p, layout)))

    @inside_compiled
    def update(self, blocks: Sequence[Block], group: Mapping[str, Any], scratch: Scratch) -> None:
        """p ← p − lr √(out/in) · polar factor of the momentum, for the blocks whose turn it is."""
        for block in blocks:
            if not block.state:
                block.state.update(self.new_state(block.p, block.layout, group))
        flat = [_momentum(block.grad, block.layout, block.state, group) for block in blocks]
        pairs = zip(blocks, flat, strict=True)
        sound = [_sound(block.grad, block.layout, f, block.state["step"], group) for block, f in pairs]
        whole = flat[0].contiguous() if len(flat) == 1 else torch.cat(flat)
        _orthogonalize(whole, scratch, group["damping"])
        for block, polar, share in zip(blocks, whole.split([len(f) for f in flat]), sound, strict=True):
            _apply(block.p, block.layout, polar.mul_(share), block.state["step"], group)
            block.state["step"] += 1


@not_compiled
def _momentum(grad: torch.Tensor, layout: str, state: Mapping[str, Any], group: Mapping[str, Any]) -> torch.Tensor:
    """Update the buffer; a new tensor of the blocks whose turn it is, to be orthogonalized.

    (blocks, m, n) with m ≤ n: those with in > out are transposed, so that both kinds share a batch. Without any
    gradient a block is zero.
    """
    buffer, beta, grad = state["momentum_buffer"], group["momentum"], wide(grad)
    as_real(buffer).lerp_(as_real(grad), 1 - beta)  # torch's complex lerp is ten times slower
    due, _ = turn(grad, layout, _MOVING, group["period"], state["step"])
    momenta, gradients = as_blocks(buffer, layout)[due], as_blocks(grad, layout)[due]
    blocks = gradients.lerp(momenta, beta) if group["nesterov"] else momenta.clone()
    n_in, n_out = block_shape(grad, layout)
    blocks = blocks.reshape(-1, n_in, n_out)
    if (idle := _idle(gradients, layout)) is not None:
        blocks[idle] = 0
    return blocks.mT.contiguous() if n_in > n_out else blocks


@not_compiled
def _sound(grad: torch.Tensor, layout: str, blocks: torch.Tensor, step: int, group: Mapping[str, Any]) -> torch.Tensor:
    """How much of its update each block is worth: (blocks, 1, 1)."""
    due, _ = turn(grad, layout, _MOVING, group["period"], step)
    filled = torch.count_nonzero(as_blocks(grad, layout)[due].reshape(len(blocks), -1), 1)
    squares = torch.linalg.vector_norm(blocks, dim=(1, 2)).square_()
    layers = prod(grad.shape[axis] for axis in order(layout, "l"))
    return trust(squares.view(layers, -1), filled.to(squares.dtype).view(layers, -1), grad.dtype).view(-1, 1, 1)


@not_compiled
def _apply(p: torch.Tensor, layout: str, polar: torch.Tensor, step: int, group: Mapping[str, Any]) -> None:
    """p ← (1 − lr · weight_decay) p − lr √(out/in) polar, for each block whose turn it was and that had a gradient."""
    due, period = turn(p, layout, _MOVING, group["period"], step)
    target, lr = as_blocks(p, layout)[due], group["lr"] * period
    n_in, n_out = block_shape(p, layout)
    if group["weight_decay"] != 0:
        active = polar.abs().amax((1, 2)) > 0
        n_batch = target.ndim - layout.count("i") - layout.count("o")
        active = active.view(*target.shape[:n_batch], *(1,) * (target.ndim - n_batch))
        target.mul_(1 - lr * group["weight_decay"] * active)
    polar = polar.mT if n_in > n_out else polar
    target.sub_(polar.reshape(target.shape).to(target.dtype), alpha=lr * block_scale(p, layout))


def _orthogonalize(whole: torch.Tensor, scratch: Scratch, damping: float) -> None:
    """In place, in chunks."""
    chunks = round(whole.numel() / chunk_size(whole.device))
    for part in whole.tensor_split(max(1, min(chunks, len(whole)))):
        orthogonalize(part, damping=damping, out=part, scratch=scratch)


def _idle(blocks: torch.Tensor, layout: str) -> torch.Tensor | None:
    """Numbers of the blocks (*b, *i, *o) that are all zero; looked at whole only if some have a first row of zeros."""
    n_in = layout.count("i")
    n_batch = blocks.ndim - n_in - layout.count("o")
    first_row: tuple[Any, ...] = (..., *(0,) * n_in, *(slice(None),) * layout.count("o"))
    first = blocks[first_row]
    if (first != 0).reshape(*first.shape[:n_batch], -1).any(-1).all():
        return None
    return (blocks == 0).reshape(*first.shape[:n_batch], -1).all(-1).flatten().nonzero().squeeze(1)
