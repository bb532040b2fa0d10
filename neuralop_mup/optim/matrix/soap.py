"""Adam in channel bases that all modes of a layer share, each mode's update of one size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from neuralop_mup.core.rules import length_factor
from neuralop_mup.errors import MupError, nearest
from neuralop_mup.optim.matrix.bases import first_basis, renewed
from neuralop_mup.optim.matrix.layouts import block_shape, order, plain_layout, plain_sizes
from neuralop_mup.optim.matrix.length import LengthCheck
from neuralop_mup.optim.matrix.noise import trust
from neuralop_mup.optim.matrix.optimizer import BASE_DEPTH, MatrixOptimizer
from neuralop_mup.optim.matrix.scratch import Scratch
from neuralop_mup.optim.matrix.soap_direction import (
    SoapSettings,
    add_grams,
    gradients_of_modes,
    soap_direction,
)
from neuralop_mup.optim.matrix.soap_stack import SoapStack
from neuralop_mup.optim.matrix.stack import Comb, Slot, Stack
from neuralop_mup.optim.matrix.tensors import as_real, wide_type
from neuralop_mup.torch_private import add_product_each_, not_compiled, sub_each_
from neuralop_mup.validation import check_count, check_decay, check_flag

__all__ = ["LR", "MAX_BASIS", "USUAL_STEPS", "WEIGHT_DECAY", "MuSOAP", "usual_lr"]

# The learning rate of trainings of so many steps, under a schedule that ends with them.
LR = 3e-2
USUAL_STEPS = 1000
# As torch's AdamW has it. Without it kernels grow for as long as they are trained, and rollouts may diverge.
WEIGHT_DECAY = 0.01
PERIOD = 2
REFRESH = 10
# Beyond this size an axis keeps its own coordinates: a decomposition takes d³ operations and its bases d² numbers each.
MAX_BASIS = 2048
# Sums of squares below this are beyond float32's precision: no gradient.
_NO_GRADIENT = 1e-35
_SIZES = ("schatten", "rms")


def usual_lr(steps: int | None = None, lr: float = LR) -> float:
    """The learning rate of a training that was tuned nowhere: ``lr``, carried to ``steps`` by the rule for lengths.

    No update is larger than the weights that it moves, so that it is at most 1.
    """
    if steps is None:
        return lr
    return min(1.0, lr * length_factor(steps, USUAL_STEPS))


class MuSOAP(MatrixOptimizer):
    r"""SOAP for Fourier kernels, each mode's update of one size, and AdamW for the rest.

    A layer's modes share one orthonormal basis of its input channels and one of its output channels: the eigenvectors of
    running means of Σ_k Re G_k G_k^H and Σ_k Re G_k^H G_k, with G_k the in×out block of the gradient at mode k. Each step's
    sum is over the modes that move at it (``period``). Of real fields mode −k has the conjugate block, so that over both
    signs these are the whole sums; with ``complex_data=True`` real bases are a choice. In these coordinates each entry of
    each mode is divided by the root of its second moment, as in Adam, with moduli. Then the block of each mode is brought
    to one size, lr·√(out/in), so that the number of modes needs no rule for the learning rate, nor does width as far as that
    size is the operator norm (docs/explain/updates.md). Hidden linear layers and 1×1 convolutions are treated alike, with
    one block each; input, readout and vectors are trained by AdamW with the learning rates of the model's plan.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model with Fourier kernels. The plan's initialisation stays in force, and so do its learning-rate
        multipliers for what AdamW trains; those of kernels and hidden layers do not apply here.
    lr : float, optional
        Size of an update: about the operator norm between root-mean-square sizes of features, in a model of ``base_depth``
        Fourier layers; at most 1. If not given it follows from ``steps``, and without these it is 0.03, which is meant for
        trainings of about 1,000 steps.
    aux_lr : float, optional
        AdamW's learning rate at base; 0.004 if not given. It does not follow ``lr``, nor ``steps``.
    steps : int, optional
        Number of optimizer steps of the whole training, instead of ``lr``: 0.03 at 1,000 steps, and at others what
        :func:`~neuralop_mup.core.rules.length_factor` makes of it, at most 1. It is meant for a schedule that ends with the
        training. A warning tells of a training that goes on beyond ``steps``, and of a schedule that ends long before.
        Not for a model with ``parametrize(training=…)``: there ``lr`` is that of base's length.
    momentum : float, default 0.95
        Decay of the running mean of gradients.
    beta2 : float, default 0.95
        Decay of the second moments.
    basis_beta : float, default 0.95
        Decay of the Gram matrices whose eigenvectors are the bases.
    period : int, default 2
        Each mode moves once in so many steps, as far as it would have in all of them, in turn with the others; its momentum
        follows every gradient, its second moments and its part of the bases those of its turn. What is computed for each
        mode costs that much less. Maps with one block move at every step.
    refresh : int, default 10
        Steps between two renewals of the bases, each by one QR decomposition; in the beginning they are renewed at steps
        2, 4, 8, … as well.
    nesterov : bool, default True
        Move along momentum · m + (1 − momentum) · gradient instead of m, the mean of gradients.
    size : {"schatten", "rms"}, default "schatten"
        What is brought to lr·√(out/in): an estimate of the operator norm, in the mean that of large matrices of random
        entries, and exact for one row or column. ``schatten``: (√in + √out)/(in·out·(in + out))^(1/4) times (Σσ⁴)^(1/4), of
        which the ratio to the other is looked for when bases are renewed. ``rms``: (√in + √out)/√(in·out) times the
        Frobenius norm (Σσ²)^(1/2). Updates of wide layers are of low rank, where both are too small, at rank one in an n×n
        block by n^(1/4)/2^(3/4) and by √n/2. The block of a separable kernel is diagonal, and its norm the largest modulus.
    weight_decay : float, default 0.01
        Decoupled: a weight shrinks by lr · weight_decay of its group at each step. Without it rollouts may diverge
        (docs/evidence/apebench.md). In AdamW's groups the plan's multiplier is divided out, as in
        :func:`neuralop_mup.param_groups`, so that this is the same at all sizes. A mode whose gradient is zero is left
        alone, and one whose gradient is hardly more than rounding decays as little as it is moved.
    lr_mult : mapping, optional
        Multipliers by role: ``spectral`` and ``hidden`` of ``lr``, the others of ``aux_lr``.
    base_depth : int or None, default 4
        As for :class:`~neuralop_mup.MuMuon`: ``lr`` goes as √(base_depth / depth).
    process_group : torch.distributed.ProcessGroup, optional
        Ranks that hold the same gradients (DDP's) and share the work: each moves some of the parameters and sends them,
        with their state, to the others. Not kept by copies and pickles of the optimizer.
    betas : (float, float), default (0.9, 0.999)
        AdamW's decays.
    eps : float, default 1e-8
        AdamW's.
    foreach : bool, optional
        AdamW's, as torch takes it.
    capturable : bool, default False
        Whether steps can be captured in a CUDA graph: learning rates are tensors then, to be changed in place. What a step
        does repeats every ``cycle`` steps, so that as many are captured and replayed in turn.
    check : {"now", "next"}, optional
        When a gradient that is not finite is refused: at its own step, which waits for the device, the default on a CPU; or
        at the next one, the default elsewhere: until then it counts as zero.

    Raises
    ------
    MupError
        If the model is not parametrized, has no Fourier kernel, or a number is not usable; if ``steps`` is given beside
        ``lr``, or for a model whose plan carries learning rates over lengths; in :meth:`step`, if a gradient is not finite
        or its squares overflow, before anything is changed.

    Notes
    -----
    Every axis that a block sums over or produces has a basis of its own: a Tucker core one for each rank, a joint kernel
    one for each layer and quadrant that it holds. An axis of more than 2,048 entries keeps its own coordinates. Of a kernel
    the state takes three quarters of Adam's memory, and four small matrices. FSDP2's sharded parameters are gathered, one
    group of equal shapes at a time; their averages stay sharded, and the bases are on every process.

    ``load_state_dict`` takes the settings of the state, as torch's optimizers do: its ``refresh``, ``size``, ``period``,
    learning rates, ``steps`` and decays replace those given here.

    References
    ----------
    Vyas et al., "SOAP: Improving and Stabilizing Shampoo using Adam", arXiv:2409.11321. Gupta et al., "Shampoo",
    arXiv:1802.09568. Kovachki et al., "Neural Operator", arXiv:2108.08481, for the layer.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((16,), 1, 1, 32), base={"hidden_channels": 16, "n_modes": (8,)})
    >>> optimizer = nm.MuSOAP(model, lr=0.03)

    Tuned nowhere, for a training of 4,000 steps:

    >>> model = nm.parametrize(FNO((16,), 1, 1, 64))
    >>> optimizer = nm.MuSOAP(model, steps=4000)
    >>> optimizer.param_groups[0]["name"], optimizer.param_groups[0]["lr"]
    ('hidden', 0.015)
    """

    sharded_state: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    usual_lr: ClassVar[float] = LR

    def __init__(
        self,
        model: nn.Module,
        lr: float | None = None,
        aux_lr: float | None = None,
        *,
        steps: int | None = None,
        momentum: float = 0.95,
        beta2: float = 0.95,
        basis_beta: float = 0.95,
        period: int = PERIOD,
        refresh: int = REFRESH,
        nesterov: bool = True,
        size: str = "schatten",
        weight_decay: float = WEIGHT_DECAY,
        lr_mult: Mapping[str, float] | None = None,
        base_depth: int | None = BASE_DEPTH,
        process_group: dist.ProcessGroup | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        foreach: bool | None = None,
        capturable: bool = False,
        check: str | None = None,
    ) -> None:
        if steps is not None:
            _check_steps(model, lr, steps)
        for what, value in (("momentum", momentum), ("beta2", beta2), ("basis_beta", basis_beta)):
            check_decay(what, value)
        check_count("period", period, "steps")
        check_flag("nesterov", nesterov)
        check_count("refresh", refresh, "steps")
        if size not in _SIZES:
            raise MupError(f"size is {size!r}; {nearest(str(size), _SIZES)}")
        super().__init__(
            model,
            usual_lr(steps) if lr is None else lr,
            aux_lr,
            settings={
                "steps": None if steps is None else int(steps),
                "momentum": momentum,
                "beta2": beta2,
                "basis_beta": basis_beta,
                "period": int(period),
                "refresh": int(refresh),
                "nesterov": nesterov,
                "size": size,
            },
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

    @not_compiled
    def _step(self) -> None:
        steps = self.param_groups[0].get("steps")  # of a loaded state, as its learning rates are
        if steps is not None:
            groups = [group for group in self.param_groups if group["layouts"] is not None]
            states = [self.state.get(p, {}) for group in groups for p in group["params"]]
            taken = max((state.get("step", 0) for state in states), default=0)
            self._length.before_step(steps, taken, _share_of_lr(groups))
        super()._step()

    @property
    def _length(self) -> LengthCheck:
        return self.__dict__.setdefault("_length_check", LengthCheck())

    def new_state(self, p: torch.Tensor, layout: str, group: Mapping[str, Any]) -> dict[str, Any]:
        """Momentum, second moments in the rotated coordinates, and each axis's Gram matrix and basis where it has one."""
        like: dict[str, Any] = {"dtype": wide_type(p).to_real(), "device": p.device}
        letters, sizes = plain_layout(layout), plain_sizes(p, layout)
        state: dict[str, Any] = {
            "step": 0,
            "exp_avg": torch.zeros_like(p, dtype=wide_type(p), memory_format=torch.preserve_format),
            "exp_avg_sq": torch.zeros(sizes, **like),
        }
        layers = prod(p.shape[axis] for axis in order(layout, "l"))
        for axis in _with_basis(p, layout):
            for what in ("gram", "basis"):
                state[f"{what}_{axis}"] = torch.zeros(layers, p.shape[axis], p.shape[axis], **like)
        if group["size"] == "schatten" and min(block_shape(p, layout)) > 1:
            state["low_rank"] = torch.ones([1 if x in "io" else n for x, n in zip(letters, sizes, strict=True)], **like)
        return state

    def _check_state(self, state_dict: Mapping[str, Any]) -> None:
        for theirs in state_dict["param_groups"]:
            if theirs.get("size", "rms") not in _SIZES:
                raise MupError(
                    f"The state of group {theirs.get('name')!r} was saved with size={theirs['size']!r}, which MuSOAP does "
                    f"not have: {nearest(str(theirs['size']), _SIZES)}"
                )
        super()._check_state(state_dict)

    def slot(self, p: torch.Tensor, state: dict[str, Any], layout: str) -> tuple[Slot, tuple]:
        """Axes of a block as those with a basis and those without, and what slots of one stack have in common.

        Axes come by size, so that layers from a to b channels and from b to a lie in one stack.
        """
        letters, sizes = plain_layout(layout), plain_sizes(p, layout)
        mixed = sorted(order(letters, "io"), key=lambda axis: (sizes[axis], letters[axis]))
        based = tuple(axis for axis in mixed if _has_basis(sizes[axis]))
        free = tuple(axis for axis in mixed if axis not in based)
        slot = Slot(p, state, layout, (order(letters, "l"), based, free, order(letters, "c"), order(letters, "b")))
        first = [letters[axis] == letters[(*based, *free)[0]] for axis in (*based, *free)]
        return slot, (slot.split(), tuple(first if based else [True, *first]))

    def adopt(self, stack: Stack) -> None:
        """One buffer each for second moments, Gram matrices, bases and ranks."""
        slot = stack.slots[0]
        stack.adopt("exp_avg_sq", slot.sizes, ["exp_avg_sq"] * len(stack.slots), Slot.as_stored)
        for i, axis in enumerate(slot.first_axes):
            for what in ("gram", "basis"):
                shape = slot.state[f"{what}_{axis}"].shape
                stack.adopt(f"{what} {i}", shape, [f"{what}_{own.first_axes[i]}" for own in stack.slots])
        if "low_rank" in slot.state:
            shape = slot.state["low_rank"].permute(slot.order).shape
            stack.adopt("low_rank", shape, ["low_rank"] * len(stack.slots), Slot.as_stored)
        stack.constants["tensors"] = SoapStack(stack, "exp_avg")

    def move(self, stack: Stack, group: Mapping[str, Any], scratch: Scratch) -> None:
        """p ← p − lr √(out/in) · direction, a piece of the modes at a time."""
        tensors, comb, beta = stack.constants["tensors"], stack.comb, group["basis_beta"]
        pieces, settings = tensors.pieces(comb), self._settings(stack, group, comb)
        # Bases, and which modes hold rounding alone, are a matter of all modes.
        gradients = tensors.gradients(pieces, scratch)
        found = [gradients_of_modes(x, settings, scratch) for x in gradients]
        for i, x in enumerate(gradients):
            add_grams(x, tensors.grams, beta if i == 0 else 1.0, 1 - beta, scratch)
        if _renews(stack.step + 1, group["refresh"]):
            self._renew(tensors, stack.step + 1)
        shared = _shares(found, 2 + comb.axis, stack.slots[0].grad.dtype if settings.has_modes else None)
        lr = group["lr"] * comb.period  # a mode moves as far in one step as it would have in all that it waited
        for piece, x, share, sound in zip(pieces, gradients, *shared, strict=True):
            ahead = scratch.take("ahead", piece.shape, x)
            tensors.read(piece.means, ahead, scratch)
            if group["nesterov"]:
                ahead.lerp_(x, 1 - group["momentum"])
            size = lr * tensors.scale
            update = soap_direction(ahead, x, piece.state, settings, share, sound, size, scratch)
            if group["weight_decay"] != 0:
                decays = tensors.of_modes(lr * share)  # a mode that is hardly moved hardly decays
                add_product_each_(piece.weights, piece.weights, decays, value=-group["weight_decay"])
            free = ahead if update.data_ptr() == x.data_ptr() else x
            sub_each_(piece.weights, tensors.of_slots(update, free))

    def _renew(self, tensors: SoapStack, step: int) -> None:
        """New bases; of a model in DistributedDataParallel those of its first process, lest replicas drift apart."""
        for c, q in zip(tensors.grams, tensors.bases, strict=True):
            if c is not None and q is not None:
                q.copy_(first_basis(c) if step == 1 else renewed(c, q))
                if self._replicas is not None and self._process_group is None:
                    dist.broadcast(q, dist.get_global_rank(self._replicas, 0), group=self._replicas)

    def cycle_of(self, group: Mapping[str, Any]) -> int:
        """Bases are renewed every so many steps."""
        return math.lcm(group["period"], group["refresh"])

    def moved(self, slot: Slot, group: Mapping[str, Any], step: int) -> list[torch.Tensor]:
        """The comb's weights and second moments, Gram matrices, and bases and ranks where they are looked for."""
        comb, state = slot.comb(group["period"], step), slot.state
        names = ["gram", *(["basis"] if _renews(step + 1, group["refresh"]) else [])]
        squares = [state[f"{name}_{axis}"] for axis in slot.first_axes for name in names]
        ranks = [state["low_rank"]] if "low_rank" in state else []
        second = slot.due(state["exp_avg_sq"].permute(slot.order), comb)
        weights = as_real(slot.view(slot.p.detach(), comb))
        return [weights, second, *squares, *ranks]

    def _settings(self, stack: Stack, group: Mapping[str, Any], comb: Comb) -> SoapSettings:
        slot, step, refresh = stack.slots[0], stack.step + 1, group["refresh"]
        return SoapSettings(
            beta2=group["beta2"],
            basis_beta=group["basis_beta"],
            block=block_shape(slot.p, slot.layout),
            first=stack.key[1],
            n_axes=len(slot.places[1]) or 1,
            has_modes=math.prod(itertools.chain(*slot.split(comb)[3:])) > 1,
            measure_rank=step <= refresh or (step - 1) % refresh < comb.period,  # once for every mode
        )


def _check_steps(model: nn.Module, lr: float | None, steps: int) -> None:
    """Refuse a number of steps from which no learning rate can follow, or not alone."""
    if lr is not None:
        raise MupError(
            f"lr is {lr!r} and steps is {steps!r}, but the learning rate follows from steps where they are given: leave out "
            "steps if lr was tuned, or lr."
        )
    check_count("steps", steps, "optimizer steps")


def _share_of_lr(groups: Sequence[Mapping[str, Any]]) -> float | None:
    """The largest of the groups' learning rates over those that they were built with.

    None where one is a tensor, which would have to be read from its device, or a group does not say what it was built with.
    """
    if any(torch.is_tensor(group["lr"]) or not (group.get("base_lr") and group.get("lr_mult")) for group in groups):
        return None
    return max((group["lr"] / (group["base_lr"] * group["lr_mult"]) for group in groups), default=None)


def _shares(
    found: Sequence[tuple[torch.Tensor, torch.Tensor]], axis: int, kept: torch.dtype | None
) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
    """How much of its update each mode of each piece is worth, and whether it has a gradient at all.

    ``found`` is what :func:`gradients_of_modes` found of each piece.
    ``axis`` is that along which there are several pieces; ``kept`` the gradient's type, None where a layer has one mode.
    """
    squares, filled = found[0] if len(found) == 1 else (torch.cat(parts, axis) for parts in zip(*found, strict=True))
    share = sound = squares > _NO_GRADIENT
    if kept is not None:
        squares, filled = squares.flatten(1), filled.flatten(1)
        ratio = squares / squares.amax(1, keepdim=True).clamp_min_(_NO_GRADIENT)
        share = trust(ratio, filled, kept).view(sound.shape)
    if len(found) == 1:
        return [share], [sound]
    sizes = [parts[0].shape[axis] for parts in found]
    return share.split(sizes, axis), sound.split(sizes, axis)


def _renews(step: int, refresh: int) -> bool:
    """Whether bases are renewed: every so many steps, and since Gram matrices change most at first at 1, 2, 4, 8, … too."""
    return step % refresh == 0 or (step < refresh and step & (step - 1) == 0)


def _has_basis(d: int) -> bool:
    return 1 < d <= MAX_BASIS


def _with_basis(p: torch.Tensor, layout: str) -> list[int]:
    """The parameter's axes that have a basis."""
    return [axis for axis in order(layout, "io") if _has_basis(p.shape[axis])]
