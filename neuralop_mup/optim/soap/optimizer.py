"""Adam in channel bases that all modes of a layer share, each mode's update of one size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod, sqrt
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.optim.kernels.layouts import block_scale, block_shape, is_paired, order, turn
from neuralop_mup.optim.kernels.noise import trust
from neuralop_mup.optim.kernels.optimizer import BASE_DEPTH, Block, KernelOptimizer, not_compiled
from neuralop_mup.optim.kernels.scratch import Scratch
from neuralop_mup.optim.kernels.tensors import as_real, wide, wide_type
from neuralop_mup.optim.soap.bases import first_basis, gram, renewed, rotate
from neuralop_mup.validation import check_count, check_decay, check_flag

__all__ = ["LR", "MAX_BASIS", "MuSOAP"]

LR = 3e-2
PERIOD = 2
REFRESH = 10
# Beyond this size an axis keeps its own coordinates: a decomposition takes d³ operations and its bases d² numbers each.
MAX_BASIS = 2048
# Where a gradient has no component its rounding errors must not be taken for one: components this much below the root mean
# square of their mode fade out.
_NOISE = 1e-5
_TINY = 1e-30  # keeps 0 / 0 at 0


class MuSOAP(KernelOptimizer):
    r"""SOAP for Fourier kernels, each mode's update of one size, and AdamW for the rest.

    A layer's modes share one orthonormal basis of its input channels and one of its output channels: the eigenvectors of
    running means of Σ_k Re G_k G_k^H and Σ_k Re G_k^H G_k, with G_k the in×out block of the gradient at mode k. Each step's
    sum is over the modes that move at it (``period``). Of real fields mode −k has the conjugate block, so that over both
    signs these are the whole sums; with ``complex_data=True`` real bases are a choice. In these coordinates each entry of
    each mode is divided by the root of its second moment, as in Adam, with moduli. Then the block of each mode is brought
    to one size, lr·√(out/in), so that the number of modes needs no rule for the learning rate, nor does width as far as that
    size is the operator norm (docs/optimizers.md). Hidden linear layers and 1×1 convolutions are treated alike, with one
    block each; input, readout and vectors are trained by AdamW with the learning rates of the model's plan.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model with Fourier kernels. The plan's initialisation stays in force, and so do its learning-rate
        multipliers for what AdamW trains; those of kernels and hidden layers do not apply here.
    lr : float
        Size of an update: about the operator norm between root-mean-square sizes of features, in a model of ``base_depth``
        Fourier layers; at most 1.
    aux_lr : float, optional
        AdamW's learning rate at base; 0.004 if not given. It does not follow ``lr``.
    momentum : float
        Decay of the running mean of gradients.
    beta2 : float
        Decay of the second moments.
    basis_beta : float
        Decay of the Gram matrices whose eigenvectors are the bases.
    period : int
        Each mode moves once in so many steps, as far as it would have in all of them, in turn with the others; its momentum
        follows every gradient, its second moments and its part of the bases those of its turn. What is computed for each
        mode costs that much less. Maps with one block move at every step.
    refresh : int
        Steps between two renewals of the bases, each by one QR decomposition; in the beginning they are renewed at steps
        2, 4, 8, … as well.
    nesterov : bool
        Move along momentum · m + (1 − momentum) · gradient instead of m, the mean of gradients.
    size : {"schatten", "rms"}
        What is brought to lr·√(out/in): an estimate of the operator norm, in the mean that of large matrices of random
        entries, and exact for one row or column. ``schatten``: (√in + √out)/(in·out·(in + out))^(1/4) times (Σσ⁴)^(1/4), of
        which the ratio to the other is looked for when bases are renewed. ``rms``: (√in + √out)/√(in·out) times the
        Frobenius norm (Σσ²)^(1/2). Updates of wide layers are of low rank, where both are too small, at rank one in an n×n
        block by n^(1/4)/2^(3/4) and by √n/2. The block of a separable kernel is diagonal, and its norm the largest modulus.
    weight_decay : float
        Decoupled: a weight shrinks by lr · weight_decay of its group at each step. In AdamW's groups the plan's
        multiplier is divided out, as in :func:`neuralop_mup.param_groups`, so that this is the same at all sizes.
        A block whose gradient is zero (inactive modes) is left alone.
    lr_mult : mapping, optional
        Multipliers by role: ``spectral`` and ``hidden`` of ``lr``, the others of ``aux_lr``.
    base_depth : int or None
        As for :class:`~neuralop_mup.MuMuon`: ``lr`` goes as √(base_depth / depth).
    process_group : torch.distributed.ProcessGroup, optional
        Ranks that hold the same gradients (DDP's) and share the work: each moves some of the parameters and sends them,
        with their state, to the others. Not kept by copies and pickles of the optimizer.
    betas, eps : (float, float), float
        AdamW's.

    Raises
    ------
    MupError
        If the model is not parametrized, has no Fourier kernel, or a number is not usable; in :meth:`step`, if a gradient is
        not finite or its squares overflow, before anything is changed.

    Notes
    -----
    Every axis that a block sums over or produces has a basis of its own: a Tucker core one for each rank, a joint kernel
    one for each layer and quadrant that it holds. An axis of more than 2,048 entries keeps its own coordinates. Of a kernel
    the state takes three quarters of Adam's memory, and four small matrices. FSDP2's sharded parameters are gathered, one
    group of equal shapes at a time; their averages stay sharded, and the bases are on every process.

    ``load_state_dict`` takes the settings of the state, as torch's optimizers do: its ``refresh``, ``size``, ``period``,
    learning rates and decays replace those given here.

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
    """

    sharded_state: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    usual_lr: ClassVar[float] = LR

    def __init__(
        self,
        model: nn.Module,
        lr: float = LR,
        aux_lr: float | None = None,
        *,
        momentum: float = 0.95,
        beta2: float = 0.95,
        basis_beta: float = 0.95,
        period: int = PERIOD,
        refresh: int = REFRESH,
        nesterov: bool = True,
        size: str = "schatten",
        weight_decay: float = 0.0,
        lr_mult: Mapping[str, float] | None = None,
        base_depth: int | None = BASE_DEPTH,
        process_group: dist.ProcessGroup | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        for what, value in (("momentum", momentum), ("beta2", beta2), ("basis_beta", basis_beta)):
            check_decay(what, value)
        check_count("period", period, "steps")
        check_flag("nesterov", nesterov)
        check_count("refresh", refresh, "steps")
        if size not in _SIZES:
            raise MupError(f"size is {size!r}; {nearest(str(size), _SIZES)}")
        super().__init__(
            model,
            lr,
            aux_lr,
            settings={
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
        )

    def new_state(self, p: torch.Tensor, layout: str, group: Mapping[str, Any]) -> dict[str, Any]:
        """Momentum, second moments in the rotated coordinates, and each axis's Gram matrix and basis where it has one."""
        paired = is_paired(p, layout)
        modulus, dtype = p.shape[:-1] if paired else p.shape, wide_type(p).to_real()
        state: dict[str, Any] = {
            "step": 0,
            "exp_avg": torch.zeros_like(p, dtype=wide_type(p), memory_format=torch.preserve_format),
            "exp_avg_sq": torch.zeros(modulus, dtype=dtype, device=p.device),
        }
        layers = prod(p.shape[axis] for axis in order(layout, "l"))
        for axis in order(layout, "io"):
            d = p.shape[axis]
            if 1 < d <= MAX_BASIS:
                for what in ("gram", "basis"):
                    state[f"{what}_{axis}"] = torch.zeros(layers, d, d, dtype=dtype, device=p.device)
        if group["size"] == "schatten" and min(block_shape(p, layout)) > 1:
            of_modes = [1 if letter in "io" else n for letter, n in zip(layout, p.shape, strict=False)]
            state["low_rank"] = torch.ones(of_modes, dtype=dtype, device=p.device)
        return state

    def _check_state(self, state_dict: Mapping[str, Any]) -> None:
        for theirs in state_dict["param_groups"]:
            if theirs.get("size", "rms") not in _SIZES:
                raise MupError(
                    f"The state of group {theirs.get('name')!r} was saved with size={theirs['size']!r}, which MuSOAP does "
                    f"not have: {nearest(str(theirs['size']), _SIZES)}"
                )
        super()._check_state(state_dict)

    def pack_key(self, p: torch.Tensor, layout: str) -> tuple:
        """Axes of the same sizes in the same order, and as many steps behind them."""
        return layout, p.shape, self.state[p].get("step", 0)

    @not_compiled  # outputs written to views of strided states are what torch's compilers refuse (2.13)
    def update(self, blocks: Sequence[Block], group: Mapping[str, Any], scratch: Scratch) -> None:
        """p ← p − lr √(out/in) · direction / its size, for blocks of one shape that have made as many steps."""
        for block in blocks:
            if not block.state:
                block.state.update(self.new_state(block.p, block.layout, group))
            as_real(block.state["exp_avg"]).lerp_(as_real(wide(block.grad)), 1 - group["momentum"])
        step = blocks[0].state["step"]
        stack = _Stack(blocks, group["period"], step)
        lr = group["lr"] * stack.period  # a mode moves as far in one step as it would have in all that it waited
        x = stack.read([block.grad for block in blocks])
        m, v = (stack.read(stack.of(key)) for key in self.sharded_state)
        ahead = scratch.take("ahead", x.shape, x)
        torch.lerp(x, m, group["momentum"], out=ahead) if group["nesterov"] else ahead.copy_(m)
        bases = _bases(x, stack, step + 1, group)
        modulus = _squares(_rotated(x, bases, scratch), scratch)
        v.lerp_(modulus, 1 - group["beta2"])
        stack.write(stack.of("exp_avg_sq"), v)
        active = _total(modulus, stack.mixed) > 0
        u = _rotated(ahead, bases, scratch).div_(_root(v, active, stack, scratch))
        factor = _sound(x, v, stack) / _size(u, stack, step, group, scratch).add_(_TINY)
        u = _rotated(u, bases, scratch, back=True)
        weights = stack.read([b.p for b in blocks])
        if group["weight_decay"] != 0:
            weights.mul_(1 - lr * group["weight_decay"] * active)
        weights.addcmul_(u, factor, value=-lr * block_scale(blocks[0].p, stack.layout))
        stack.write([b.p for b in blocks], weights)
        for block in blocks:
            block.state["step"] = step + 1


class _Stack:
    """What moves of blocks of one shape, as one real tensor (layers, *in axes, *out axes, channels, modes, parts).

    ``modes`` are those whose turn it is: every ``period``-th, another comb at each step.
    ``layers`` counts the kernels, several if one tensor holds several; ``channels`` are those that do not mix; ``parts`` are
    the real and the imaginary one, or one where numbers are real. ``mixed`` numbers the axes of a block.
    """

    def __init__(self, blocks: Sequence[Block], period: int, step: int) -> None:
        self.blocks, self.layout = blocks, blocks[0].layout
        self.block_shape = block_shape(blocks[0].p, self.layout)
        self.mixed = tuple(range(1, 1 + len(order(self.layout, "io"))))
        layers, channels = (len(order(self.layout, letter)) for letter in "lc")
        self._ends = layers, layers + len(self.mixed), layers + len(self.mixed) + channels
        due, self.period = turn(blocks[0].p, self.layout, "b", period, step)
        self._due = (*(slice(None),) * self._ends[-1], *due)

    def of(self, key: str) -> list[torch.Tensor]:
        """One entry of the blocks' states."""
        return [block.state[key] for block in self.blocks]

    def read(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """One contiguous tensor, in float32 or better; of a single block a view where that is possible."""
        layers, mixed, free = self._ends
        parts = []
        for x in map(self._permuted, tensors):
            sizes, pair = x.shape[: len(self.layout)], x.shape[len(self.layout) :]
            modes = prod(sizes[free:])
            parts.append(x.reshape(prod(sizes[:layers]), *sizes[layers:mixed], prod(sizes[mixed:free]), modes, *pair))
        x = (parts[0] if len(parts) == 1 else torch.cat(parts)).contiguous()
        if x.is_complex():
            return wide(torch.view_as_real(x))
        return wide(x if is_paired(tensors[0], self.layout) else x.unsqueeze(-1))

    def write(self, tensors: Sequence[torch.Tensor], value: torch.Tensor) -> None:
        """Put back what :meth:`read` gave, after it was changed."""
        for tensor, part in zip(tensors, value.split(len(value) // len(tensors)), strict=True):
            target = self._permuted(tensor)
            if target.data_ptr() != part.data_ptr():
                part = torch.view_as_complex(part) if target.is_complex() else part
                target.copy_(part.reshape(target.shape))

    def read_square(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Gram matrices or bases (layers, d, d)."""
        return wide(torch.cat(list(tensors)))

    def write_square(self, tensors: Sequence[torch.Tensor], value: torch.Tensor) -> None:
        """Put them back."""
        for tensor, part in zip(tensors, value.split(len(value) // len(tensors)), strict=True):
            tensor.copy_(part)

    def _permuted(self, tensor: torch.Tensor) -> torch.Tensor:
        """The modes whose turn it is, a view. Complex numbers stay such: torch copies them seven times as fast as pairs."""
        axes = order(self.layout, "liocb")
        return tensor.resolve_conj().permute(*axes, *range(len(axes), tensor.ndim))[self._due]


def _bases(x: torch.Tensor, stack: _Stack, step: int, group: Mapping[str, Any]) -> dict[int, torch.Tensor]:
    """Bases by axis after a gradient: their Gram matrices follow it, and they are renewed when their time has come."""
    bases = {}
    # In the beginning the Gram matrix changes most: at steps 2, 4, 8, … until the regular ones.
    due = step % group["refresh"] == 0 or (step < group["refresh"] and step & (step - 1) == 0)
    for i, axis in enumerate(order(stack.layout, "io"), start=1):
        if f"basis_{axis}" not in stack.blocks[0].state:
            continue
        grams, stored = stack.of(f"gram_{axis}"), stack.of(f"basis_{axis}")
        c = stack.read_square(grams).lerp(gram(x, i), 1 - group["basis_beta"])
        stack.write_square(grams, c)
        q = stack.read_square(stored)
        if step == 1 or due:
            q = first_basis(c) if step == 1 else renewed(c, q)
            stack.write_square(stored, q)
        bases[i] = q
    return bases


def _rotated(x: torch.Tensor, bases: Mapping[int, torch.Tensor], scratch: Scratch, *, back: bool = False) -> torch.Tensor:
    """``x`` in the bases of all axes, or back from them; the last two results before it are overwritten."""
    for i, (axis, q) in enumerate(bases.items(), start=len(bases) * back):
        x = rotate(x, q, axis, back=back, out=scratch.take(f"rotated {i % 2}", x.shape, x))
    return x


def _root(v: torch.Tensor, active: torch.Tensor, stack: _Stack, scratch: Scratch) -> torch.Tensor:
    """What Adam divides by, never below the noise of its mode; infinite where there is no gradient, so that momentum, which
    may have outlived all second moments, moves nothing."""
    floor = (_total(v, stack.mixed) / prod(stack.block_shape)).sqrt_().mul_(_NOISE).add_(_TINY)
    floor = floor.masked_fill_(~active, torch.inf)
    return torch.sqrt(v, out=scratch.take("root", v.shape, v)).add_(floor)


def _sound(x: torch.Tensor, v: torch.Tensor, stack: _Stack) -> torch.Tensor:
    """How much of its update each mode is worth."""
    if not stack.mixed:
        return v.new_ones(())
    squares, filled = _total(v, stack.mixed), torch.count_nonzero((x != 0).any(-1), stack.mixed)
    found = trust(squares.flatten(1), filled.flatten(1).to(v.dtype), stack.blocks[0].grad.dtype)
    return found.view(squares.shape)


def _squares(x: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """Squared moduli (…, 1); torch's sum over two parts takes four times as long."""
    first = x[..., :1]
    squares = torch.mul(first, first, out=scratch.take("squares", first.shape, x))
    return squares if x.shape[-1] == 1 else squares.addcmul_(x[..., 1:], x[..., 1:])


def _total(x: torch.Tensor, mixed: tuple[int, ...]) -> torch.Tensor:
    return x.sum(mixed, keepdim=True) if mixed else x


def _size(u: torch.Tensor, stack: _Stack, step: int, group: Mapping[str, Any], scratch: Scratch) -> torch.Tensor:
    """Operator norm of a matrix with this Frobenius norm and the singular values of a random one: a first-order estimate.

    Entries of unit variance have Frobenius norm √(mn) and operator norm about √m + √n.
    """
    m, n = stack.block_shape
    norm = _total(_squares(u, scratch), stack.mixed).sqrt()
    if min(m, n) == 1:
        return norm.amax(-3, keepdim=True)  # channels that do not mix are one block of each mode
    if "low_rank" in stack.blocks[0].state:
        low_rank = stack.read(stack.of("low_rank"))
        if step < group["refresh"] or step % group["refresh"] < stack.period:  # once for every mode
            low_rank = _low_rank(u, norm, stack, scratch)
            stack.write(stack.of("low_rank"), low_rank)
        norm = norm * low_rank
    return norm * ((sqrt(m) + sqrt(n)) / sqrt(m * n))


def _low_rank(u: torch.Tensor, norm: torch.Tensor, stack: _Stack, scratch: Scratch) -> torch.Tensor:
    """(Σσ⁴)^(1/4) over (Σσ²)^(1/2), and that over its value for random entries: 1 at full rank, more at low rank.

    Complex entries of unit variance have E Σσ⁴ = mn(m + n), real ones mn(m + n + 1).
    """
    m, n = stack.block_shape
    unit = torch.div(u, norm + _TINY, out=scratch.take("unit", u.shape, u))  # its fourth powers stay in range
    matrices = torch.view_as_complex(unit) if unit.shape[-1] == 2 else unit[..., 0]
    of_random = ((m + n + 2 - u.shape[-1]) / (m * n)) ** 0.25
    ratio = _fourth_powers(matrices.reshape(len(u), m, n, -1)).sqrt().div_(of_random).view(norm.shape)
    return torch.where(norm > 0, ratio, 1.0)


def _fourth_powers(a: torch.Tensor) -> torch.Tensor:
    """(Σσ⁴)^(1/2) = ‖A Aᴴ‖_F of matrices (layers, m, n, modes): (layers, modes), from products of the shorter side.

    With A = X + iY, A Aᴴ = (XXᵀ + YYᵀ) + i(YXᵀ − XYᵀ); torch's own product of complex matrices takes four times as long.
    """
    a = a.permute(0, 3, 1, 2) if a.shape[1] <= a.shape[2] else a.permute(0, 3, 2, 1)
    batch = a.shape[:2]
    a = a.flatten(0, 1)
    if not a.is_complex():
        return torch.linalg.matrix_norm(torch.bmm(a, a.mT)).view(batch)
    x, y = a.real.contiguous(), a.imag.contiguous()
    mixed = torch.bmm(y, x.mT)
    even, odd = torch.bmm(x, x.mT).baddbmm_(y, y.mT), mixed - mixed.mT
    return torch.hypot(torch.linalg.matrix_norm(even), torch.linalg.matrix_norm(odd)).view(batch)


_SIZES = ("schatten", "rms")
