"""The optimizer: orthogonalized momentum for kernels and hidden maps, AdamW under the plan for the rest."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from numbers import Real
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.adamw import adamw

from neuralop_mup.checkpoint import check_optimizer_state
from neuralop_mup.errors import MupError
from neuralop_mup.following import follow_plan
from neuralop_mup.muon.groups import as_blocks, block_scale, block_shape, fourier_depth, map_layouts, turn
from neuralop_mup.muon.newton_schulz import Scratch, full_precision, orthogonalize
from neuralop_mup.optim import param_groups
from neuralop_mup.parametrize import get_plan
from neuralop_mup.plan import check_masters
from neuralop_mup.rules import ROLES
from neuralop_mup.wrapping import unwrap

__all__ = ["AUX_LR", "LR", "MuMuon"]

LR, AUX_LR = 2e-2, 4e-3
PERIOD = 4
BASE_DEPTH = 4
# Numbers (a complex one counts once) that are orthogonalized at a time: on a CPU temporaries then stay in its cache, on
# other devices they fill it.
_CHUNK = {"cpu": 2**17}
_CHUNK_ELSEWHERE = 2**25


class MuMuon(torch.optim.Optimizer):
    r"""Steepest descent under the operator norm, mode by mode (Muon for Fourier kernels), and AdamW for the rest.

    The momentum of each mode's in×out block is replaced by its polar factor, times √(out/in): every mode's update then
    has operator norm lr·√(out/in) (in its turn, ``period`` times that), at any width and any number of modes, so that
    neither a width nor a mode rule is needed for its learning rate (docs/muon.md). Hidden linear maps and 1×1
    convolutions are treated alike; input, readout and vectors are trained by AdamW with the learning rates of the model's
    plan.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model with Fourier kernels. The plan's initialisation stays in force, and so do its learning-rate
        multipliers for what AdamW trains; those of kernels and hidden maps do not apply here.
    lr : float
        Size of an update of a map, measured as the operator norm between root-mean-square sizes of features, in a model
        of ``base_depth`` Fourier layers; at most 1. The same at every width and number of modes, but to be tuned at one:
        the best was 0.04 to 0.08 in short runs, 0.02 in longer ones (docs/muon.md).
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
        so that its dominant directions get less. Found by experiment, not derived: at its best ``lr``, 0.7 ends lower than
        0, which is Muon, on Burgers and Darcy and not on Navier–Stokes, and its best ``lr`` is not quite the same at every
        width (docs/muon.md).
    weight_decay : float
        Decoupled: a weight shrinks by lr · weight_decay of its group at each step. In AdamW's groups the plan's
        multiplier is divided out, as in :func:`neuralop_mup.param_groups`, so that this is the same at all sizes.
        A block whose gradient is zero (inactive modes) is left alone.
    lr_mult : mapping, optional
        Master multipliers by role: ``spectral`` and ``hidden`` of ``lr``, the others of ``aux_lr`` (and what has these two
        roles without being a map: the weights of a CP kernel's terms, stencils).
    base_depth : int or None
        Updates of maps go as √(base_depth / depth), where depth is the model's number of Fourier layers: those of all
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
        If the model is not parametrized, has no Fourier kernel, is sharded (FSDP), or a number is not usable; in
        :meth:`step`, if a gradient is not finite, before anything is changed.

    Notes
    -----
    Groups carry ``name``, ``lr``, ``lr_mult`` (over ``lr``, or ``aux_lr``), ``rule_mult`` and ``weight_decay``, so
    schedulers work as they are; those that cycle momentum cycle AdamW's ``betas`` alone. Float32 products are made in full
    precision, whatever torch is set to for others. ``torch.optim.Muon`` takes real 2-D parameters alone: kernels are
    complex and have modes, and the hidden maps of neuralop are convolution weights (out, in, 1).

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

    _process_group: dist.ProcessGroup | None = None  # on the class: copies and pickles of an optimizer share nothing

    def __init__(
        self,
        model: nn.Module,
        lr: float = LR,
        aux_lr: float | None = None,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        period: int = PERIOD,
        damping: float = 0.0,
        weight_decay: float = 0.0,
        lr_mult: Mapping[str, float] | None = None,
        base_depth: int | None = BASE_DEPTH,
        process_group: dist.ProcessGroup | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        _check_numbers(lr, aux_lr, momentum, weight_decay, betas, eps)
        for what, value, unit in (("period", period, "steps"), ("base_depth", base_depth, "Fourier layers")):
            if not (value is None and what == "base_depth") and (type(value) is not int or value < 1):
                raise MupError(f"{what} is {value!r}; give a whole number of {unit}, 1 or more.")
        if not (isinstance(damping, Real) and not isinstance(damping, bool) and 0 <= damping <= 1):
            raise MupError(f"damping is {damping!r}; give a number from 0 (the polar factor itself) to 1; 0.7 is usual.")
        aux_lr, model = AUX_LR if aux_lr is None else aux_lr, unwrap(model)
        settings = {"momentum": momentum, "nesterov": nesterov, "period": period, "damping": damping}
        settings |= {"betas": tuple(betas), "eps": eps}
        depth_mult = 1.0 if base_depth is None else math.sqrt(base_depth / fourier_depth(model))
        groups = _groups(model, lr, aux_lr, depth_mult, weight_decay, lr_mult)
        self._process_group = process_group
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, **settings})
        follow_plan(model, self)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group for AdamW, or with ``layouts`` for orthogonalized updates (:mod:`neuralop_mup.muon.groups`)."""
        params = param_group["params"]
        params = [params] if isinstance(params, torch.Tensor) else list(params)
        held = {id(p) for group in self.param_groups for p in group["params"]}
        if len({id(p) for p in params} | held) < len(params) + len(held):
            raise MupError("A parameter of this group is in the optimizer already: give each parameter one group.")
        if "lr" not in param_group:
            raise MupError("This group has no lr, and MuMuon has two (of maps, and AdamW's aux_lr): say which it is to be.")
        layouts = param_group.get("layouts")
        if layouts is not None and not (
            len(layouts) == len(params)
            and all(set(x) <= set("bio") and p.ndim - _paired(p, x) == len(x) for p, x in zip(params, layouts, strict=True))
        ):
            raise MupError(f"The group's layouts {layouts} do not fit its parameters: one letter (b, i or o) for each axis.")
        super().add_param_group({"layouts": None, **param_group, "params": params})

    @torch.no_grad()
    def step(self, closure: Callable[[], torch.Tensor] | None = None) -> torch.Tensor | None:
        """One step on the gradients as they are (accumulated, all-reduced).

        Raises
        ------
        MupError
            If a gradient holds a NaN or an infinity: nothing was changed then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_gradients()
        self._update()
        return loss

    @torch.compiler.disable(recursive=False)
    def _update(self) -> None:
        scratch = Scratch()
        with full_precision():
            for group in self.param_groups:
                if group["layouts"] is None:
                    self._adamw(group)
                else:
                    self._muon(group, scratch)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; its settings (``period``, ``momentum``, learning rates, …) replace ours, as in torch.

        Raises
        ------
        MupError
            If its groups treat parameters in another way, or by other multipliers.
        """
        ours = [group["layouts"] for group in self.param_groups]
        groups = state_dict.get("param_groups", ()) if isinstance(state_dict, Mapping) else ()
        if ours != [group.get("layouts") for group in groups]:
            raise MupError(
                "This state is not of a MuMuon over the same parameters (their layouts differ): load it into the "
                "optimizer and the model that it was saved from."
            )
        check_optimizer_state(self, state_dict)  # the same parameters under another base or rule
        super().load_state_dict(state_dict)

    def _check_gradients(self) -> None:
        pairs = [
            (group, i, _real(p.grad))
            for group in self.param_groups
            for i, p in enumerate(group["params"])
            if p.grad is not None
        ]
        if not pairs:
            return
        # A sum is finite only if all its terms are: one pass, one synchronisation. An overflow is looked into below.
        sums = torch.stack([grad.sum().float().to(pairs[0][2].device) for *_, grad in pairs])
        if sums.sum().isfinite():
            return
        for group, i, grad in pairs:
            if not grad.isfinite().all():
                name = group["param_names"][i] if "param_names" in group else f"number {i} of group {group.get('name')}"
                raise MupError(
                    f"The gradient of {name!r} is not finite, so this step was not taken and nothing was changed: lower "
                    "the learning rate, clip gradients, or skip the batch."
                )

    # ---------------------------------------------------------------------------------------- orthogonalized momentum

    @torch.compiler.disable(recursive=False)
    def _muon(self, group: dict[str, Any], scratch: Scratch) -> None:
        for pack in _packs(group):
            for p, _ in pack:
                if not self.state[p]:
                    self.state[p].update(step=0, momentum_buffer=torch.zeros_like(p))
            flat = [_momentum(p.grad, layout, self.state[p], group) for p, layout in pack]
            whole = flat[0].contiguous() if len(flat) == 1 else torch.cat(flat)
            if self._process_group is None:
                _orthogonalize(whole, scratch, group["damping"])
            else:
                _orthogonalize_together(whole, scratch, group["damping"], self._process_group)
            for (p, layout), polar in zip(pack, whole.split([len(f) for f in flat]), strict=True):
                _apply(p.detach(), layout, polar, self.state[p]["step"], group)
                self.state[p]["step"] += 1

    # -------------------------------------------------------------------------------------------------------- the rest

    @torch.compiler.disable
    def _adamw(self, group: dict[str, Any]) -> None:
        params = [p for p in group["params"] if p.grad is not None]
        for p in params:
            if not self.state[p]:
                step = torch.tensor(0.0, dtype=torch.float32)  # whatever the default type: bfloat16 cannot count past 256
                self.state[p].update(step=step, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
        states = [self.state[p] for p in params]
        adamw(
            params,
            [p.grad for p in params],
            *([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq")),
            [],
            [state["step"] for state in states],
            has_complex=any(p.is_complex() for p in params),
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


# torch.compile is kept to orthogonalize, where the work is. A method of an optimizer would, compiled, take every parameter
# for the first one that it saw (torch 2.13), and these here would be compiled anew for each shape, layout and turn.


@torch.compiler.disable
def _momentum(grad: torch.Tensor, layout: str, state: Mapping[str, Any], group: Mapping[str, Any]) -> torch.Tensor:
    """Update the buffer; a new tensor of the blocks whose turn it is, to be orthogonalized.

    (blocks, m, n) with m ≤ n: those with in > out are transposed, so that both kinds share a batch. Without any
    gradient a block is zero.
    """
    buffer, beta = state["momentum_buffer"], group["momentum"]
    _real(buffer).lerp_(_real(grad), 1 - beta)  # torch's complex lerp is ten times slower
    due, _ = turn(grad, layout, group["period"], state["step"])
    momenta, gradients = as_blocks(buffer, layout)[due], as_blocks(grad, layout)[due]
    blocks = gradients.lerp(momenta, beta) if group["nesterov"] else momenta.clone()
    n_in, n_out = block_shape(grad, layout)
    blocks = blocks.reshape(-1, n_in, n_out)
    if (idle := _idle(gradients, layout)) is not None:
        blocks[idle] = 0
    return blocks.mT.contiguous() if n_in > n_out else blocks


@torch.compiler.disable
def _apply(p: torch.Tensor, layout: str, polar: torch.Tensor, step: int, group: Mapping[str, Any]) -> None:
    """p ← (1 − lr · weight_decay) p − lr √(out/in) polar, for each block whose turn it was and that had a gradient."""
    due, period = turn(p, layout, group["period"], step)
    target, lr = as_blocks(p, layout)[due], group["lr"] * period
    n_in, n_out = block_shape(p, layout)
    if group["weight_decay"] != 0:
        active = polar.abs().amax((1, 2)) > 0
        n_batch = layout.count("b")
        active = active.view(*target.shape[:n_batch], *(1,) * (target.ndim - n_batch))
        target.mul_(1 - lr * group["weight_decay"] * active)
    polar = polar.mT if n_in > n_out else polar
    target.sub_(polar.reshape(target.shape), alpha=lr * block_scale(p, layout))


def _orthogonalize(whole: torch.Tensor, scratch: Scratch, damping: float) -> None:
    """In place, in chunks."""
    chunks = round(whole.numel() / _CHUNK.get(whole.device.type, _CHUNK_ELSEWHERE))
    for part in whole.tensor_split(max(1, min(chunks, len(whole)))):
        orthogonalize(part, damping=damping, out=part, scratch=scratch)


def _orthogonalize_together(whole: torch.Tensor, scratch: Scratch, damping: float, group: dist.ProcessGroup) -> None:
    """In place: each rank its share of the blocks, which it then sends to the others."""
    parts = whole.tensor_split(dist.get_world_size(group))
    _orthogonalize(parts[dist.get_rank(group)], scratch, damping)
    sent = [
        dist.broadcast(_real(part), dist.get_global_rank(group, rank), group=group, async_op=True)
        for rank, part in enumerate(parts)
        if len(part)
    ]
    for work in sent:
        work.wait()


def _idle(blocks: torch.Tensor, layout: str) -> torch.Tensor | None:
    """Numbers of the blocks (*b, *i, *o) that are all zero; looked at whole only if some have a first row of zeros."""
    n_batch, n_in = layout.count("b"), layout.count("i")
    first = blocks[(..., *(0,) * n_in, *(slice(None),) * layout.count("o"))]
    if (first != 0).reshape(*first.shape[:n_batch], -1).any(-1).all():
        return None
    return (blocks == 0).reshape(*first.shape[:n_batch], -1).all(-1).flatten().nonzero().squeeze(1)


def _real(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def _paired(p: torch.Tensor, layout: str) -> bool:
    """Whether complex numbers are stored as pairs of real ones."""
    return p.ndim == len(layout) + 1


def _packs(group: Mapping[str, Any]) -> Iterator[list[tuple[torch.Tensor, str]]]:
    """Parameters with blocks of one shape, put together until they fill a chunk."""
    open_packs: dict[tuple, list[tuple[torch.Tensor, str]]] = {}
    for p, layout in zip(group["params"], group["layouts"], strict=True):
        if p.grad is None:
            continue
        paired = _paired(p, layout)
        key = (tuple(sorted(block_shape(p, layout))), p.dtype, paired, p.device)
        pack = open_packs.setdefault(key, [])
        pack.append((p, layout))
        if sum(q.numel() for q, _ in pack) / group["period"] >= _CHUNK.get(p.device.type, _CHUNK_ELSEWHERE):
            yield open_packs.pop(key)
    yield from open_packs.values()


# ------------------------------------------------------------------------------------------------------------- set up


def _groups(
    model: nn.Module,
    lr: float,
    aux_lr: float,
    depth_mult: float,
    weight_decay: float,
    lr_mult: Mapping[str, float] | None,
) -> list[dict[str, Any]]:
    rows = {row.name: row for row in get_plan(model).rows}
    masters = check_masters(lr_mult, "lr_mult")
    # Checks that plan and parameters agree, and gives AdamW's groups with everything still in them.
    auxiliary = param_groups(model, aux_lr, "adam", weight_decay=weight_decay, lr_mult=lr_mult)
    parameters = dict(model.named_parameters())
    names = {id(p): name for name, p in parameters.items()}
    if not any(row.role == "spectral" for row in rows.values()):
        raise MupError(f"{type(model).__name__} has no Fourier kernel, and MuMuon is for those: use neuralop_mup.MuAdam.")
    for name, p in parameters.items():
        if hasattr(p, "placements"):
            raise MupError(
                f"{name!r} is a DTensor (FSDP, tensor parallelism), of which this process holds a part of each block only: "
                "MuMuon takes whole parameters; use DDP, or MuAdam with sharding."
            )
    layouts = map_layouts(model, rows)
    groups = []
    for role in ROLES:
        if of_role := [name for name in layouts if rows[name].role == role]:
            master = masters.get(role, 1.0)
            groups.append(
                {
                    "params": [parameters[name] for name in of_role],
                    "param_names": of_role,
                    "name": role,
                    "layouts": [layouts[name] for name in of_role],
                    "lr": lr * master * depth_mult,
                    "lr_mult": master * depth_mult,
                    "rule_mult": depth_mult,
                    "weight_decay": weight_decay / depth_mult,  # independent: lr · weight_decay is that at base_depth
                }
            )
    for group in auxiliary:
        group["params"] = [p for p in group["params"] if names[id(p)] not in layouts]
        group["param_names"] = [names[id(p)] for p in group["params"]]
        group["name"] = "aux " + "+".join(r for r in ROLES if r in {rows[name].role for name in group["param_names"]})
    auxiliary = [group for group in auxiliary if group["params"]]
    labels = [group["name"] for group in auxiliary]
    for i, (group, label) in enumerate(zip(auxiliary, labels, strict=True)):
        group["name"] = label if labels.count(label) == 1 else f"{label} {labels[: i + 1].count(label)}"
    return groups + auxiliary


def _check_numbers(lr, aux_lr, momentum, weight_decay, betas, eps) -> None:
    def number(value: object) -> bool:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value) and value >= 0

    for what, value, why in (
        ("lr", lr, "it is the operator norm of each update, where weights are of norm about 1; 0.02 is usual"),
        ("aux_lr", aux_lr, "it is AdamW's, by which every entry moves; 0.004 is usual"),
    ):
        if not (value is None and what == "aux_lr") and not (number(value) and value <= 1):
            raise MupError(f"{what} is {value!r}; give a number from 0 to 1: {why}.")
    if aux_lr is not None and aux_lr != AUX_LR and 0 < lr < aux_lr:
        warnings.warn(
            f"aux_lr = {aux_lr:g} (AdamW's, for input, readout and vectors) is larger than lr = {lr:g} (the size of the "
            "updates of kernels and hidden maps); usually it is the smaller one. Were they meant the other way round?",
            stacklevel=3,
        )
    for what, value in (("weight_decay", weight_decay), ("eps", eps)):
        if not number(value):
            raise MupError(f"{what} is {value!r}; give a finite number that is not negative.")
    decays = {"momentum": momentum}
    try:
        decays.update(zip(("betas[0]", "betas[1]"), betas, strict=True))
    except (TypeError, ValueError):
        raise MupError(f"betas is {betas!r}; give two numbers such as (0.9, 0.999).") from None
    for what, value in decays.items():
        if not (number(value) and value < 1):
            raise MupError(f"{what} is {value!r}; give a number of 0 or more and below 1.")
