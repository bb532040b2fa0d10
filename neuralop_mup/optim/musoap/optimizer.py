"""MuSOAP optimizer: Adam in channel bases shared by all modes of a layer, with a fixed update size."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.adamw import adamw

from neuralop_mup.core.check_init import looks_drawn
from neuralop_mup.core.weights_status import WeightsStatus, status_of
from neuralop_mup.errors import MupError, nearest
from neuralop_mup.optim.checks import check_same_groups, kernels_without_gradient, warn_of_no_gradient
from neuralop_mup.optim.learning_rate import effective_decay, effective_lr, unscheduled_lr
from neuralop_mup.optim.lr_hooks import follow_plan
from neuralop_mup.optim.musoap import parallel
from neuralop_mup.optim.musoap.depth import DepthMeasurement
from neuralop_mup.optim.musoap.eigenbases import first_basis, qr_iteration
from neuralop_mup.optim.musoap.gradient_check import CHECKS, GradientCheck
from neuralop_mup.optim.musoap.matrix_groups import musoap_groups
from neuralop_mup.optim.musoap.precision import full_precision
from neuralop_mup.optim.musoap.stacks import (
    PAIR,
    Blocks,
    Members,
    axes_of,
    block_shape,
    has_basis,
    local_reals,
    upcast,
    upcast_dtype,
)
from neuralop_mup.optim.musoap.update import Averages, Scratch, direction, update_grams
from neuralop_mup.optim.resolved_model import ResolvedModel, needs_model, resolve
from neuralop_mup.optim.schedule import (
    BEGINNING,
    LR,
    begin_cooldown,
    check_start_error,
    default_lr,
    move_end,
    note_peaks,
    set_factors,
    trained_lr,
    upgraded,
    warning_past_the_end,
)
from neuralop_mup.torch_private import add_product_each_, lerp_each_, not_compiled, sub_each_
from neuralop_mup.validation import check_count, check_decay, check_names, check_number, is_number

ADAMW_LR = 4e-3
# The default of torch's AdamW. Without weight decay, kernels grow throughout training, and rollouts may diverge.
WEIGHT_DECAY = 0.01
# At most about this many numbers are stacked and updated together in a step (a complex number counts once). On a CPU, larger
# stacks would not fit into the caches. Other devices are fully used at this size.
_CHUNK = {"cpu": 2**17, "elsewhere": 2**24}
_SHARDED = ("exp_avg", "exp_avg_sq")  # entries of the state that have the shape of the parameter


class MuSOAP(torch.optim.Optimizer):
    r"""SOAP for Fourier kernels and hidden layers, AdamW for all other parameters.

    All modes of a layer share one orthonormal basis of its input channels and one of its output channels. The basis vectors
    are the eigenvectors of the running means of Σ_k Re G_k G_k^H and Σ_k Re G_k^H G_k, where G_k is the in×out block of the
    gradient at mode k. In these coordinates, each entry is divided by the root of its second moment, as in Adam. The block
    of each mode is then scaled so that its operator norm is lr·√(out/in). This size depends neither on the width nor on the
    number of modes (docs/explain/updates.md). The operator norm is estimated as (√in + √out)/(in·out·(in + out))^(1/4) ·
    (Σσ⁴)^(1/4). This estimate is exact for blocks with one row or column, and on average for large random matrices. For a
    separable kernel, the norm is the largest modulus. Hidden linear layers and 1×1 convolutions are updated in the same way,
    with one block per layer. AdamW trains input layers, readouts and vectors at the learning rates of the model's plan.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model with Fourier kernels.
    lr : float, optional
        Update size, at most 1. In a model with ``base_depth`` Fourier layers, it is approximately the operator norm of an
        update if features are measured by their root mean square. The default depends on ``steps``, or on the number of
        steps taken if ``steps`` is not given.
    adamw_lr : float, optional
        AdamW's learning rate for the base model. The default is 0.004. For trained weights without ``lr``, the default is
        0.004 · lr / 0.03, where lr is the default update size.
    steps : int, optional
        Total number of optimizer steps. The default learning rate is 0.03 · √(1000 / steps), at most 1. Training ends at
        step ``steps``: each step uses the smaller of ``group["lr"]``, which schedulers set, and a cosine that falls from the
        largest rate so far to zero at ``steps``. A schedule that itself falls to zero at ``steps`` is therefore unchanged,
        and any other schedule is made to end at zero. ``group["schedule_factor"]`` is the resulting factor, and
        ``group["step_lr"]`` is the effective rate of the last step. After ``steps``, the rate is one hundredth of the
        largest rate, and a warning is raised. :meth:`set_steps` changes the number of steps.

        Without ``steps`` and ``lr``, the rate after t steps is 0.7 · 0.03 · √(1000 / (t + 100)), until you call
        :meth:`cooldown` to end training.
    start_error : float or torch.Tensor of one number, optional
        Relative error of a trained model on the new data before the first step, e.g. 0.06 for 6 %. It determines, together
        with ``steps``, the default ``lr`` for fine-tuning. Without it, the default for trained weights (``parametrize(model,
        init=False)``) is that of a run that is 3,000 steps longer.
    momentum : float, default 0.95
        Decay of the running mean m of gradients. The update direction is momentum · m + (1 − momentum) · gradient.
    beta2 : float, default 0.95
        Decay of the second moments.
    mode_stride : int, default 2
        Each mode is updated once every ``mode_stride`` steps, with an update that is ``mode_stride`` times as large. Its
        momentum uses every gradient, but its second moments and its contribution to the bases only use the gradients of the
        steps that update it. This divides most of the cost per mode by ``mode_stride``. Layers with one block are updated at
        every step.
    refresh : int, default 10
        Number of steps between updates of the bases. Each update is one QR iteration. The bases are also updated at steps 1,
        2, 4, 8, … before the first of these.
    weight_decay : float, default 0.01
        Weight decay, which is decoupled and independent of width: each step shrinks weights by lr · weight_decay, where lr
        is the learning rate of the base model. Without weight decay, rollouts diverged in one of ten scenarios
        (docs/evidence/apebench.md). A mode without a gradient does not decay.
    lr_mult : mapping, optional
        Multipliers by role. Those for ``spectral`` and ``hidden`` multiply ``lr``, and all others multiply ``adamw_lr``.
    base_depth : int or None, default 4
        The learning rate of kernels and hidden layers is multiplied by √(base_depth / depth), because updates of consecutive
        layers add up (docs/evidence/learning_rate.md). Depth is the number of Fourier layers on the longest path through the
        model. It is estimated from the modules when the optimizer is built, and measured in the backward passes before the
        first step. If the two values differ, ``group["depth_mult"]`` corrects the rate from the first step on. In a compiled
        forward pass, the depth cannot be measured, and a warning is raised if the estimate is uncertain. The default of 4 is
        the depth of neuralop's FNO. None disables this factor.
    process_group : torch.distributed.ProcessGroup, optional
        Group of ranks that have equal gradients (under DistributedDataParallel) and share the work. Each rank updates some
        of the parameters and broadcasts them with their state. Copies and pickles of the optimizer do not keep the group.
    betas, eps, foreach : optional
        Settings of AdamW, as in ``torch.optim.AdamW``.
    capturable : bool, default False
        Whether AdamW counts its steps on the device. :func:`~neuralop_mup.capture_steps` enables this.
    check : {"now", "next", "skip", "off"}, optional
        What to do if a gradient is not finite, or if its squares overflow. ``now`` (the default on a CPU) waits for the
        device and raises an error at this step. ``next`` (the default on other devices) sets all gradients of the step to
        zero and raises an error at a later step. ``skip`` sets them to zero and counts ``bad_steps``. ``off`` disables the
        check.
    **unknown
        Unknown arguments raise an error that suggests the most similar name.

    Raises
    ------
    MupError
        If the model is not parametrized or has no Fourier kernels, or if an argument is invalid. In :meth:`step`, if a
        gradient is not finite (see ``check``).

    Notes
    -----
    Every axis that a block sums over or produces has its own basis. For example, a Tucker core has one basis for each rank,
    and a joint kernel has one for each layer and quadrant. Axes with more than 2,048 entries have no basis. The state of a
    kernel takes three quarters of the memory of Adam's state, plus four small matrices. Parameters sharded by FSDP2 are
    gathered one group of equal shapes at a time. Their averages remain sharded, and each process stores all bases.

    As in torch's optimizers, ``load_state_dict`` restores the settings of the saved state, which override the arguments.

    References
    ----------
    Vyas et al., "SOAP: Improving and Stabilizing Shampoo using Adam", arXiv:2409.11321. Gupta et al., "Shampoo",
    arXiv:1802.09568. Kovachki et al., "Neural Operator", arXiv:2108.08481, describe the Fourier layer.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((16,), 1, 1, 32), base={"hidden_channels": 16, "n_modes": (8,)})
    >>> optimizer = nm.MuSOAP(model, lr=0.03)

    With the default learning rate, for 4,000 steps:

    >>> model = nm.parametrize(FNO((16,), 1, 1, 64))
    >>> optimizer = nm.MuSOAP(model, steps=4000)
    >>> optimizer.param_groups[0]["name"], optimizer.param_groups[0]["lr"]
    ('hidden', 0.015)
    """

    # Defaults on the class, because copies and pickles of an optimizer start without these attributes and rely only on its
    # states.
    _process_group: dist.ProcessGroup | None = None
    _compared = False  # whether the rates of all processes have been compared
    _replicas: dist.ProcessGroup | None = None
    _batches: cached_property[dict[int | None, tuple[list, list[Blocks]]]] = cached_property(lambda self: {})
    _check = cached_property(lambda self: GradientCheck())
    _warned_of_end = False
    _depth: DepthMeasurement | None = None  # None after the first step
    _resolved: ResolvedModel | None = None  # None after the first step

    @needs_model
    def __init__(
        self,
        model: nn.Module,
        lr: float | None = None,
        adamw_lr: float | None = None,
        *,
        steps: int | None = None,
        start_error: float | None = None,
        momentum: float = 0.95,
        beta2: float = 0.95,
        mode_stride: int = 2,
        refresh: int = 10,
        weight_decay: float = WEIGHT_DECAY,
        lr_mult: Mapping[str, float] | None = None,
        base_depth: int | None = 4,
        process_group: dist.ProcessGroup | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        foreach: bool | None = None,
        capturable: bool = False,
        check: str | None = None,
        **unknown: Any,
    ) -> None:
        if {"aux_lr", "period"} & unknown.keys():
            warnings.warn(
                "aux_lr was renamed to adamw_lr, and period was renamed to mode_stride. The next release will remove the "
                "old names.",
                FutureWarning,
                stacklevel=3,
            )
            adamw_lr, mode_stride = unknown.pop("aux_lr", adamw_lr), unknown.pop("period", mode_stride)
        check_names(unknown, MuSOAP)
        for what, count, unit in (
            ("steps", 1 if steps is None else steps, "optimizer steps"),
            ("mode_stride", mode_stride, "steps"),
            ("refresh", refresh, "steps"),
            ("base_depth", 1 if base_depth is None else base_depth, "Fourier layers"),
        ):
            check_count(what, count, unit)
        if start_error is not None:
            start_error = check_start_error(start_error, lr)
        for what, value in (("momentum", momentum), ("beta2", beta2), ("betas", betas)):
            check_decay(what, value)
        for what, value in (("weight_decay", weight_decay), ("eps", eps)):
            check_number(what, value)
        if check is not None and check not in CHECKS:
            raise MupError(f"Unknown check {check!r}: {nearest(str(check), CHECKS)}")
        _check_rates(lr, adamw_lr)
        steps, base_scale = None if steps is None else int(steps), None
        resolved = resolve(model)
        default_adamw_lr = ADAMW_LR
        if lr is None and (start_error is not None or status_of(resolved.model) is WeightsStatus.TRAINED):
            lr = trained_lr(steps, start_error)
            default_adamw_lr *= lr / LR
        elif lr is None:
            lr, base_scale = default_lr(steps), "anytime" if steps is None else 1.0
        # Convert NumPy scalars, because torch.load rejects states that contain them.
        lr, adamw_lr, weight_decay = (
            float(lr),
            float(default_adamw_lr if adamw_lr is None else adamw_lr),
            float(weight_decay),
        )
        groups = musoap_groups(resolved, lr, adamw_lr, base_depth, weight_decay, lr_mult, base_scale)
        settings = {
            "layouts": None,  # AdamW trains groups that are added without layouts
            **BEGINNING,
            "steps": steps,
            "momentum": float(momentum),
            "beta2": float(beta2),
            "mode_stride": int(mode_stride),
            "refresh": int(refresh),
            "lr": adamw_lr,
            "weight_decay": weight_decay,
            "betas": (float(betas[0]), float(betas[1])),
            "eps": float(eps),
            "foreach": foreach,
            "capturable": capturable,
            "check": check,
        }
        super().__init__(groups, settings)
        self._process_group = process_group
        self._replicas = model.process_group if isinstance(model, DistributedDataParallel) else None
        self._resolved = resolved
        self._depth = None if base_depth is None else DepthMeasurement(resolved)
        set_factors(self.param_groups, 0)
        follow_plan(resolved.model, self)

    @property
    def cycle(self) -> int:
        """Number of steps after which the sequence of operations repeats."""
        return math.lcm(*(math.lcm(g["mode_stride"], g["refresh"]) for g in self.param_groups if g["layouts"] is not None))

    @property
    def bad_steps(self) -> int:
        """Number of steps that had a bad gradient, if ``check`` is "next" or "skip".

        The gradients of these steps were set to zero. Reading this property waits for the device.
        """
        return 0 if self._check.count is None else int(self._check.count)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters with their current gradients.

        Parameters
        ----------
        closure : callable, optional
            Function that recomputes the loss and its gradients. It is called once, before the step.

        Returns
        -------
        Any
            The return value of the closure, or None without a closure.

        Raises
        ------
        MupError
            If a gradient contains NaN or infinity, or is so large that its squares overflow (in float32, if its norm exceeds
            about 1e16). ``check`` determines when the error is raised. The step that raises it is not taken.

        Examples
        --------
        >>> import torch
        >>> from neuralop.models import FNO
        >>> import neuralop_mup as nm
        >>> model = nm.parametrize(FNO((8,), 1, 1, 16))
        >>> optimizer = nm.MuSOAP(model, steps=1000)
        >>> optimizer.zero_grad()
        >>> model(torch.randn(2, 1, 16)).square().mean().backward()
        >>> optimizer.step()
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step()
        return loss

    # When torch 2.13 compiles an optimizer method, it treats every parameter like the first one.
    @not_compiled
    def _step(self) -> None:
        groups, taken = self.param_groups, self.param_groups[0]["taken"]
        if groups[0]["params"][0].is_cuda and torch.cuda.is_current_stream_capturing():
            raise MupError(
                "A MuSOAP step cannot be captured in a CUDA graph, because the graph would repeat its learning rate and "
                "its subset of modes. Call neuralop_mup.capture_steps(optimizer) once, and then call optimizer.step() "
                "outside of any capture."
            )
        # Rates are zero in the first step of a warm-up, and when torch's get_state_dict creates states.
        if self._depth is not None and any(group["lr"] for group in groups):
            self._depth.correct(groups)
            self._depth = None
        note_peaks(groups, taken)
        set_factors(groups, taken)
        if not self._warned_of_end and (warning := warning_past_the_end(groups[0], taken)):
            self._warned_of_end = True
            warnings.warn(warning, stacklevel=2)
        if (together := self._process_group or self._replicas) and not self._compared:
            rates, steps = [unscheduled_lr(group) for group in groups], groups[0]["steps"] or 0
            parallel.check_equal(rates, steps, groups[0]["params"][0].device, together)
            self._compared = True
        if taken == 0:
            if _changes_nothing(groups):
                return self._make_states(groups)
            self._warn_before_the_first_step(groups)
        self._check.raise_for_earlier_steps()
        self._on_device(groups)
        self._check.request_count(groups)
        for group in groups:
            group["taken"] = taken + 1

    def _on_device(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Perform the operations of a step that a CUDA graph can capture."""
        self._check.run(groups)
        kind, sent = groups[0]["params"][0].device.type, []
        with torch.autocast(kind, enabled=False), full_precision() if kind == "cuda" else nullcontext():
            for index, group in enumerate(groups):
                if group["layouts"] is None:
                    self._adamw(group)
                elif members := self._follow(group):
                    sent += self._shared(index, group, members)
            if sent and self._process_group is not None:
                parallel.broadcast_updates(sent, self._process_group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters for AdamW. It uses the same number of steps and cooldown as the other groups."""
        of_all = ("taken", "steps", "cooldown")
        end = {key: self.param_groups[0][key] for key in of_all} if self.param_groups else {}
        params = param_group["params"]
        params = [params] if isinstance(params, torch.Tensor) else list(params)
        if end and "param_names" not in param_group and all(isinstance(p, torch.Tensor) for p in params):
            # torch requires that either all groups have names or none does.
            n = sum(len(group["params"]) for group in self.param_groups)
            param_group = {**param_group, "param_names": [f"added.{n + i}" for i in range(len(params))]}
        super().add_param_group({**end, **param_group, "params": params})
        if end and end["cooldown"] is not None:
            self.param_groups[-1]["cooldown"] = (*end["cooldown"][:2], float(self.param_groups[-1]["lr"]))

    def set_steps(self, n: int) -> None:
        """Change the total number of steps, so that the learning rate falls to zero at step ``n``.

        A default learning rate is adapted to ``n``, but it does not increase after the first step. A cooldown is cancelled.

        Parameters
        ----------
        n : int
            Total number of optimizer steps, including those already taken.

        Raises
        ------
        MupError
            If ``n`` is not an integer greater than the number of steps taken.

        Examples
        --------
        >>> from neuralop.models import FNO
        >>> import neuralop_mup as nm
        >>> optimizer = nm.MuSOAP(nm.parametrize(FNO((8,), 1, 1, 16)), steps=4000)
        >>> optimizer.set_steps(1000)
        >>> group = optimizer.param_groups[0]
        >>> round(group["lr"] * group["schedule_factor"], 6)
        0.03
        """
        move_end(self.param_groups, n)
        self._warned_of_end = False

    def cooldown(self, n: int) -> None:
        """Decrease the learning rates from their current values to zero over the next ``n`` steps.

        Call it to end a run of unknown length, or to end a run early. The error is lowest if the cooldown is as long as the
        preceding training. Shorter cooldowns give slightly higher errors. To continue training afterwards, load a state from
        before the cooldown.

        Parameters
        ----------
        n : int
            Number of steps of the cooldown, at most the number of steps taken.

        Raises
        ------
        MupError
            If ``n`` is not an integer between 1 and the number of steps taken, or if a cooldown has already begun.

        Examples
        --------
        >>> import torch
        >>> from neuralop.models import FNO
        >>> import neuralop_mup as nm
        >>> model = nm.parametrize(FNO((8,), 1, 1, 16))
        >>> optimizer = nm.MuSOAP(model)
        >>> for step in range(10):
        ...     optimizer.zero_grad()
        ...     model(torch.randn(2, 1, 16)).square().mean().backward()
        ...     optimizer.step()
        ...     if step == 6:
        ...         optimizer.cooldown(3)
        """
        begin_cooldown(self.param_groups, n)

    def _adamw(self, group: Mapping[str, Any]) -> None:
        """Perform a step of torch's AdamW with averages in at least float32."""
        params, capturable = self._make_adamw_states(group)
        states, updated = [self.state[p] for p in params], upcast(params)
        adamw(
            updated,
            upcast([p.grad for p in params]),
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            foreach=group["foreach"] if capturable or not torch.is_tensor(group["lr"]) else False,
            capturable=capturable,
            has_complex=any([p.is_complex() for p in params]),  # noqa: C419  a generator calls once per entry
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=effective_lr(group),
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        for p, new in zip(params, updated, strict=True):
            if new is not p:
                p.copy_(new)

    def _make_adamw_states(self, group: Mapping[str, Any]) -> tuple[list[Any], bool]:
        """Create missing states. Return the parameters that have a gradient, and whether steps are counted on the device."""
        params = [p for p in group["params"] if p.grad is not None]
        capturable = group["capturable"] and group["params"][0].device.type != "cpu"  # not supported by torch on a CPU
        for p in params:
            if not self.state[p]:
                # Do not use the default dtype, because bfloat16 cannot count beyond 256.
                step = torch.tensor(0.0, dtype=torch.float32, device=p.device if capturable else None)
                averages = {name: torch.zeros_like(p, dtype=upcast_dtype(p)) for name in ("exp_avg", "exp_avg_sq")}
                self.state[p].update(step=step, **averages)
        return params, capturable

    def _make_states(self, groups: Sequence[Mapping[str, Any]]) -> None:
        for group in groups:
            if group["layouts"] is None:
                self._make_adamw_states(group)
            else:
                self._follow(group)

    def _warn_before_the_first_step(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Warn about kernels without a gradient, and about loaded weights at the default rate for fresh weights."""
        resolved, self._resolved = self._resolved, None
        if resolved is None:
            return
        warn_of_no_gradient(kernels_without_gradient(resolved, count_zeros=False), stacklevel=4)
        is_loaded = groups[0]["base_scale"] is not None and status_of(resolved.model) is WeightsStatus.LOADED
        if is_loaded and not looks_drawn(resolved.model, resolved.plan):
            warnings.warn(
                "Trained weights were loaded into this model, but MuSOAP starts at the learning rate for fresh weights, "
                "so the error will first increase. To fine-tune, call parametrize(model, init=False) before loading the "
                "weights, or pass MuSOAP(…, start_error=e), where e is the relative error before the first step. To "
                "resume training, also load the optimizer's state.",
                stacklevel=3,
            )

    def _follow(self, group: Mapping[str, Any]) -> Members:
        """Update the momenta. Return the parameters that have a gradient."""
        members = [(p, x) for p, x in zip(group["params"], group["layouts"], strict=True) if p.grad is not None]
        for p, layout in members:
            if not self.state[p]:
                self.state[p].update(_new_state(p, layout))
        if members:
            means = local_reals([self.state[p]["exp_avg"] for p, _ in members])
            lerp_each_(means, upcast(local_reals([p.grad for p, _ in members])), 1 - group["momentum"])
        return members

    def _shared(self, index: int, group: Mapping[str, Any], members: Members) -> list[tuple[int, list[torch.Tensor]]]:
        """Update the parameters that this process owns. Return the tensors that each process must send to the others."""
        if any([hasattr(p, "placements") for p, _ in members]):  # noqa: C419
            parallel.gather_step_scatter(members, self.state, _SHARDED, lambda own, states: self._move(own, states, group))
            return []
        if self._process_group is None:
            self._move(members, self.state, group, index)
            return []
        owners = parallel.owners([p.numel() for p, _ in members], self._process_group.size())
        owned = list(zip(members, owners, strict=True))
        self._move([m for m, owner in owned if owner == self._process_group.rank()], self.state, group, index)
        for (p, _), owner in owned:
            if owner != self._process_group.rank():
                self.state[p]["step"] += 1
        return [(owner, parallel.updated_modes(p, self.state[p], x, group["mode_stride"])) for (p, x), owner in owned]

    def _move(self, members: Members, states: Mapping, group: Mapping[str, Any], index: int | None = None) -> None:
        """Update parameters batch by batch. If ``index`` is given, keep the batches for the next step."""
        found = [(id(p), p.data_ptr(), p.dtype, id(states[p]), states[p]["exp_avg"].data_ptr()) for p, _ in members]
        known, batches = self._batches.get(index, ([], []))
        if known != found or not all([batch.is_current() for batch in batches]):  # noqa: C419
            batches = _batches_of(members, states, group["mode_stride"])
            if index is not None:
                self._batches[index] = found, batches
        scratch = Scratch()
        for batch in batches:
            self._move_batch(batch, group, scratch)

    def _move_batch(self, batch: Blocks, group: Mapping[str, Any], scratch: Scratch) -> None:
        """Update one batch: p ← p − lr √(out/in) · direction."""
        active, step, refresh = batch.active_modes(group["mode_stride"]), batch.step + 1, group["refresh"]
        x = batch.read(batch.in_order([p.grad for p in batch.params], active.modes), active, scratch, "gradients")
        update_grams(x, active.averages.grams, scratch)
        if _renews(step, refresh):
            self._renew(active.averages, step)
        nesterov_momentum = batch.read(active.means, active, scratch, "momentum").lerp_(x, 1 - group["momentum"])
        # One update replaces the updates of the skipped steps.
        lr = effective_lr(group) * active.period
        update, noise_gate = direction(
            x,
            nesterov_momentum,
            active.averages,
            lr * batch.scale,
            scratch,
            beta2=group["beta2"],
            block=batch.block,
            first=batch.first,
            precision=torch.finfo(batch.dtype).eps,
            # once per mode between two updates of the bases
            measure_rank=step <= refresh or (step - 1) % refresh < active.period,
        )
        if group["weight_decay"] != 0:  # a mode with a reduced update also decays less
            mult, noise_gate = (1.0, lr * noise_gate) if torch.is_tensor(lr) else (lr, noise_gate)
            decays = batch.per_mode(noise_gate, active)
            add_product_each_(active.weights, active.weights, decays, value=-mult * effective_decay(group))
        sub_each_(active.weights, batch.per_parameter(update, active, scratch))
        batch.count_step()

    def _renew(self, averages: Averages, step: int) -> None:
        """Update the bases. Replicas under DistributedDataParallel use the bases of the first process."""
        for c, q in zip(averages.grams, averages.bases, strict=True):
            if c is not None and q is not None:
                q.copy_(first_basis(c) if step == 1 else qr_iteration(c, q))
                if self._replicas is not None and self._process_group is None:
                    dist.broadcast(q, dist.get_global_rank(self._replicas, 0), group=self._replicas)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a saved state, including its settings, and convert averages to the precision of the parameters.

        Parameters
        ----------
        state_dict : dict
            State dict of a MuSOAP optimizer with the same groups. As in torch's optimizers, its settings (momentum, learning
            rates, …) override the arguments of the constructor.

        Raises
        ------
        MupError
            If its groups differ in their parameters, in how these are updated, or in their multipliers.

        Examples
        --------
        >>> from neuralop.models import FNO
        >>> import neuralop_mup as nm
        >>> model = nm.parametrize(FNO((8,), 1, 1, 16))
        >>> state = nm.MuSOAP(model, steps=1000).state_dict()
        >>> nm.MuSOAP(model, steps=1000).load_state_dict(state)
        """
        check_same_groups(self, state_dict)
        saved, built = state_dict["param_groups"], self.param_groups[0]["steps"]
        # States of release 0.3.0 only count steps for matrices. Capturable optimizers store lr as a tensor.
        taken = max([own["step"] for own in state_dict["state"].values() if isinstance(own.get("step"), int)], default=0)
        groups = [{**ours, **upgraded(theirs)} for ours, theirs in zip(self.param_groups, saved, strict=True)]
        for group in groups:
            group.update(lr=float(group["lr"]), taken=max(taken, group["taken"]))
        steps = groups[0]["steps"]
        if built not in (None, steps):
            warnings.warn(
                f"This optimizer was built with steps={built}, but the loaded state has steps={steps}, which now applies. "
                f"To end training after {built} steps, call optimizer.set_steps({built}).",
                stacklevel=2,
            )
        super().load_state_dict({**state_dict, "param_groups": groups})
        for cached in ("_batches", "_warned_of_end"):
            vars(self).pop(cached, None)
        taken = self.param_groups[0]["taken"]
        self._depth = None if taken else self._depth
        set_factors(self.param_groups, taken)
        for group, theirs in zip(self.param_groups, groups, strict=True):
            for p, key in zip(group["params"], theirs["params"], strict=True):
                for name, value in state_dict["state"].get(key, {}).items():
                    if not torch.is_tensor(value):
                        continue
                    # torch converts averages to the dtype of the parameter and does not copy steps.
                    own = self.state[p][name]
                    dtype = upcast_dtype(p) if value.is_complex() else upcast_dtype(p).to_real()
                    self.state[p][name] = own.clone() if name == "step" else value.to(own.device, dtype, copy=True)


def _changes_nothing(groups: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether rates and gradients are zero, as when torch.distributed.checkpoint steps to create states."""
    if any(float(group["lr"]) != 0 for group in groups):
        return False
    return not any(bool(p.grad.any()) for group in groups for p in group["params"] if p.grad is not None)


def _check_rates(lr: float | None, adamw_lr: float | None) -> None:
    """Raise MupError if a learning rate is invalid, and warn if ``lr`` looks like a learning rate for Adam."""
    for what, value, usual in (("lr", lr, LR), ("adamw_lr", adamw_lr, ADAMW_LR)):
        if value is not None and not (is_number(value) and value <= 1):
            raise MupError(f"{what} must be a number from 0 to 1, such as {usual:g}, got {value!r}.")
    if lr and lr <= LR / 10:
        warnings.warn(
            f"lr = {lr:g} is small for MuSOAP, because lr is the size of an update. Use a value near {LR:g}, and pass "
            "AdamW's learning rate as adamw_lr (in nm.train: aux_lr).",
            stacklevel=4,
        )


def _new_state(p: torch.Tensor, layout: str) -> dict[str, Any]:
    """Return the state of a parameter before the first step.

    It contains the momentum, the second moments in rotated coordinates, the Gram matrix and basis of each axis, and the
    ratio of norms.
    """
    dtype = upcast_dtype(p)
    like: dict[str, Any] = {"dtype": dtype.to_real(), "device": p.device}
    numbers = p.select(layout.index(PAIR), 0) if PAIR in layout else p
    axes, sizes = axes_of(p, layout), {axis: n for axis, n in enumerate(p.shape) if layout[axis] != PAIR}
    state: dict[str, Any] = {
        "step": 0,
        "exp_avg": torch.zeros_like(p, dtype=dtype),
        "exp_avg_sq": torch.zeros_like(numbers, dtype=dtype.to_real(), memory_format=torch.contiguous_format),
    }
    for axis in sorted(axes.mixed, key=lambda axis: layout[axis]):
        for what in ("gram", "basis") if has_basis(sizes[axis]) else ():
            state[f"{what}_{axis}"] = torch.zeros(math.prod(sizes[a] for a in axes.layers), sizes[axis], sizes[axis], **like)
    if min(block_shape(p, layout)) > 1:
        state["low_rank"] = torch.ones([1 if axis in axes.mixed else n for axis, n in sizes.items()], **like)
    return state


def _batches_of(members: Members, states: Mapping, mode_stride: int) -> list[Blocks]:
    """Stack parameters with equal shapes and step counts into batches of limited size."""
    equal: dict[tuple, list[tuple[torch.Tensor, str]]] = {}
    for p, layout in members:
        axes = axes_of(p, layout)
        sizes = tuple(tuple(p.shape[axis] for axis in own) for own in axes)
        first = tuple(layout[axis] == layout[axes.mixed[0]] for axis in axes.mixed)
        parts = p.is_complex() or PAIR in layout
        key = (sizes, first, parts, upcast_dtype(p), p.grad is not None and p.grad.dtype, p.device, states[p]["step"])
        equal.setdefault(key, []).append((p, layout))
    batches = []
    for own in equal.values():
        p = own[0][0]
        n = math.ceil(_CHUNK.get(p.device.type, _CHUNK["elsewhere"]) * mode_stride / p.numel())
        batches += [Blocks(own[i : i + n], states) for i in range(0, len(own), n)]
    return batches


def _renews(step: int, refresh: int) -> bool:
    """Return whether bases are updated at this step: every ``refresh`` steps, and before that at steps 1, 2, 4, 8, …"""
    return step % refresh == 0 or (step < refresh and step & (step - 1) == 0)
