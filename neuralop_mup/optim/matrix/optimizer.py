"""What MuMuon and MuSOAP share: settings, groups, stacks of parameters that move together, states. Directions differ."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from neuralop_mup.core.unwrap import unwrap
from neuralop_mup.errors import MupError, nearest
from neuralop_mup.optim.follow import follow_plan
from neuralop_mup.optim.matrix.adamw import adamw_step
from neuralop_mup.optim.matrix.gradients import GradientCheck
from neuralop_mup.optim.matrix.groups import matrix_groups
from neuralop_mup.optim.matrix.layouts import LETTERS, plain_layout
from neuralop_mup.optim.matrix.precision import full_precision
from neuralop_mup.optim.matrix.ranks import broadcast_moved, owners, through_owners
from neuralop_mup.optim.matrix.scratch import Scratch, chunk_size
from neuralop_mup.optim.matrix.stack import Slot, Stack
from neuralop_mup.optim.matrix.tensors import as_real, is_sharded, local, sharded_like, wide, wide_type
from neuralop_mup.optim.on_plan import check_optimizer_state
from neuralop_mup.torch_private import lerp_each_, not_compiled
from neuralop_mup.validation import check_count, check_decay, check_flag, check_number, is_number

__all__ = ["AUX_LR", "BASE_DEPTH", "MatrixOptimizer", "Members"]

AUX_LR = 4e-3
BASE_DEPTH = 4
_CHECKS = ("now", "next")
_NEW = ("foreach", "capturable", "check")

Members = Sequence[tuple[torch.Tensor, str]]  # parameters with their layouts


class MatrixOptimizer(torch.optim.Optimizer):
    """Matrix updates for kernels and hidden linear layers, AdamW under the model's plan for input, readout and vectors.

    A subclass says how parameters lie in a stack (:meth:`slot`, :meth:`adopt`) and how a stack moves (:meth:`move`), and
    names the entries of its state that have the parameter's shape, first its momentum. Everything else is here, once.

    Raises
    ------
    MupError
        If the model is not parametrized, has no Fourier kernel, or a number is not usable; in :meth:`step`, if a gradient
        is not finite or its squares overflow.
    """

    sharded_state: ClassVar[tuple[str, ...]]
    usual_lr: ClassVar[float]
    # On the class: copies and pickles of an optimizer have neither groups of processes nor stacks.
    _process_group: dist.ProcessGroup | None = None
    _replicas: dist.ProcessGroup | None = None

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        aux_lr: float | None,
        *,
        settings: Mapping[str, Any],
        weight_decay: float,
        lr_mult: Mapping[str, float] | None,
        base_depth: int | None,
        process_group: dist.ProcessGroup | None,
        betas: tuple[float, float],
        eps: float,
        foreach: bool | None,
        capturable: bool,
        check: str | None,
    ) -> None:
        self._check_rates(lr, aux_lr)
        if settings.get("steps") is None:  # else nobody wrote lr, which may be as small as a long training wants it
            self._warn_of_rates(lr, aux_lr)
        check_decay("betas", betas)
        check_number("weight_decay", weight_decay)
        check_number("eps", eps)
        check_flag("capturable", capturable)
        if foreach is not None:
            check_flag("foreach", foreach)
        if check is not None and check not in _CHECKS:
            raise MupError(f"check is {check!r}: {nearest(str(check), _CHECKS)}")
        if process_group is not None and not isinstance(process_group, dist.ProcessGroup):
            raise MupError(
                f"process_group is {process_group!r}, which is no group of processes: give a torch.distributed.ProcessGroup "
                "such as torch.distributed.group.WORLD, or None where nothing is shared."
            )
        if base_depth is not None:
            check_count("base_depth", base_depth, "Fourier layers")
        replicas = model.process_group if isinstance(model, DistributedDataParallel) else None
        aux_lr, model = AUX_LR if aux_lr is None else aux_lr, unwrap(model)
        groups = matrix_groups(type(self).__name__, model, lr, aux_lr, base_depth, weight_decay, lr_mult)
        defaults = {"lr": lr, "weight_decay": weight_decay, "betas": tuple(betas), "eps": eps, **dict(settings)}
        super().__init__(groups, {**defaults, "foreach": foreach, "capturable": capturable, "check": check})
        self._process_group, self._replicas = process_group, replicas
        if capturable:
            for group in self.param_groups:
                group["lr"] = torch.tensor(float(group["lr"]), device=group["params"][0].device)
        follow_plan(model, self)

    def _check_rates(self, lr: float, aux_lr: float | None) -> None:
        for what, value, why in (
            ("lr", lr, f"it is the size of each update, where weights are of norm about 1; {self.usual_lr:g} is usual"),
            ("aux_lr", aux_lr, f"it is AdamW's, by which every entry moves; {AUX_LR:g} is usual"),
        ):
            if value is None and what == "aux_lr":
                continue
            if value is None or not (is_number(value) and value <= 1):
                raise MupError(f"{what} is {value!r}; give a number from 0 to 1: {why}.")

    def _warn_of_rates(self, lr: float, aux_lr: float | None) -> None:
        if aux_lr is not None and aux_lr != AUX_LR and 0 < lr < aux_lr:
            warnings.warn(
                f"aux_lr = {aux_lr:g} (AdamW's, for input, readout and vectors) is larger than lr = {lr:g} (the size of "
                "the updates of kernels and hidden layers); usually it is the smaller one. Were they meant the other way "
                "round?",
                stacklevel=4,
            )
        elif 0 < lr <= self.usual_lr / 10:
            warnings.warn(
                f"lr = {lr:g} is small for {type(self).__name__}: it is the size of an update, not Adam's learning rate; "
                f"{self.usual_lr:g} is usual.",
                stacklevel=4,
            )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group for AdamW, or with ``layouts`` for matrix updates (:mod:`neuralop_mup.optim.matrix.layouts`)."""
        name = type(self).__name__
        params = param_group["params"]
        params = [params] if isinstance(params, torch.Tensor) else list(params)
        held = {id(p) for group in self.param_groups for p in group["params"]}
        if len({id(p) for p in params} | held) < len(params) + len(held):
            raise MupError("A parameter of this group is in the optimizer already: give each parameter one group.")
        if "lr" not in param_group:
            raise MupError(
                f"This group has no lr, and {name} has two (that of kernels and hidden layers, and AdamW's aux_lr): say "
                "which it is to be."
            )
        if self.param_groups and "param_names" not in param_group:
            raise MupError(
                "This group has no param_names, which every group here has: checkpoints and messages go by them. Give one "
                "name for each parameter."
            )
        layouts = param_group.get("layouts")
        if layouts is not None and not (
            len(layouts) == len(params)
            and all(set(x) <= set(LETTERS) and p.ndim == len(x) for p, x in zip(params, layouts, strict=True))
        ):
            raise MupError(
                f"The group's layouts {layouts} do not fit its parameters: one letter (l, c, b, i, o or p) for each axis."
            )
        super().add_param_group({"layouts": None, **param_group, "params": params})

    @abstractmethod
    def new_state(self, p: torch.Tensor, layout: str, group: Mapping[str, Any]) -> dict[str, Any]:
        """The state of a parameter before its first step; ``step`` counts from 0."""

    @abstractmethod
    def slot(self, p: torch.Tensor, state: dict[str, Any], layout: str) -> tuple[Slot, tuple]:
        """How a parameter lies in a stack, and what slots of one stack have in common."""

    @abstractmethod
    def adopt(self, stack: Stack) -> None:
        """Make the states of a new stack views of its buffers."""

    @abstractmethod
    def move(self, stack: Stack, group: Mapping[str, Any], scratch: Scratch) -> None:
        """Move a stack's parameters by one step, in place, after their momenta have followed the gradients."""

    @property
    def cycle(self) -> int:
        """After how many steps, once the first few are over, a step does the same again."""
        return math.lcm(*(self.cycle_of(group) for group in self.param_groups if group["layouts"] is not None))

    def cycle_of(self, group: Mapping[str, Any]) -> int:
        """The same for one group of matrices."""
        return group["period"]

    @abstractmethod
    def moved(self, slot: Slot, group: Mapping[str, Any], step: int) -> list[torch.Tensor]:
        """What :meth:`move` changed of a parameter and its state at a step, as real views."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step on the gradients as they are (accumulated, all-reduced).

        Parameters
        ----------
        closure : callable, optional
            Computes the loss and its gradients anew; it is called once, before the step.

        Returns
        -------
        Any
            What the closure returns; None without one.

        Raises
        ------
        MupError
            If a gradient holds a NaN or an infinity, or is so large that its squares overflow (in float32 from a norm of
            1e16 on): nothing was changed then. With ``check="next"`` the gradients of such a step count as zero, and the
            step after it raises.

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

    # A method of an optimizer would, compiled, take every parameter for the first one that it saw (torch 2.13).
    @not_compiled
    def _step(self) -> None:
        groups = self.param_groups
        self._check_usable(groups)
        self._check.run(groups)
        scratch, sent = Scratch(), []
        with full_precision({p.device.type for group in groups for p in group["params"]}):
            for index, group in enumerate(groups):
                if group["layouts"] is None:
                    adamw_step(group, self.state)
                elif members := self._follow(group):
                    sent += self._matrices(index, group, members, scratch)
            if sent and self._process_group is not None:
                broadcast_moved(sent, self._process_group)

    def _check_usable(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Refuse what was changed under the optimizer, before anything moves."""
        if bad := next((g for g in groups if g["capturable"] and not torch.is_tensor(g["lr"])), None):
            raise MupError(
                f"The learning rate of group {bad.get('name')!r} is the number {bad['lr']!r}, which a captured step would "
                "keep for ever: with capturable=True change it in place, group['lr'].fill_(…), as torch's schedulers do."
            )
        for group in groups:
            for p in group["params"] if group["layouts"] is not None else ():
                kept = self.state[p].get(self.sharded_state[0]) if p in self.state else None
                if p.grad is not None and kept is not None and kept.dtype != wide_type(p):
                    raise MupError(
                        f"Parameters of group {group.get('name')!r} are {p.dtype} now, and their averages {kept.dtype}: "
                        "convert the model before the optimizer is built, and load its state then."
                    )

    def _follow(self, group: Mapping[str, Any]) -> Members:
        """Parameters that have a gradient, after their momenta have followed it."""
        members = [(p, x) for p, x in zip(group["params"], group["layouts"], strict=True) if p.grad is not None]
        for p, layout in members:
            if not self.state[p]:
                state = self.new_state(p, layout, group)
                sharded = {key: sharded_like(p, state[key]) for key in self.sharded_state} if is_sharded(p) else {}
                self.state[p].update({**state, **sharded})
        if members:
            means = [as_real(local(self.state[p][self.sharded_state[0]])) for p, _ in members]
            lerp_each_(means, [as_real(wide(local(p.grad))) for p, _ in members], 1 - group["momentum"])
        return members

    def _matrices(
        self, index: int, group: Mapping[str, Any], members: Members, scratch: Scratch
    ) -> list[tuple[int, list[torch.Tensor]]]:
        """Move parameters, those that are this process's to move; what each process has to send to the others."""
        if any(is_sharded(p) for p, _ in members):
            through_owners(
                members, self.state, self.sharded_state, lambda own, states: self._move(own, states, group, scratch)
            )
            return []
        if self._process_group is None:
            self._move(members, self.state, group, scratch, index)
            return []
        world, rank = self._process_group.size(), self._process_group.rank()
        own = owners([p.numel() for p, _ in members], world)
        steps = [self.state[p]["step"] for p, _ in members]
        self._move([m for m, owner in zip(members, own, strict=True) if owner == rank], self.state, group, scratch, index)
        sent = []
        for (p, layout), owner, step in zip(members, own, steps, strict=True):
            self.state[p]["step"] = step + 1
            slot, _ = self.slot(p, self.state[p], layout)
            sent.append((owner, self.moved(slot, group, step)))
        return sent

    def _move(
        self, members: Members, states: Mapping, group: Mapping[str, Any], scratch: Scratch, index: int | None = None
    ) -> None:
        """Move parameters stack by stack; with ``index`` stacks are kept for the next step."""
        momentum = self.sharded_state[0]
        found = tuple((id(p), p.data_ptr(), p.dtype, id(states[p]), states[p][momentum].data_ptr()) for p, _ in members)
        known, stacks = self._stacks.get(index, ((), []))
        if known != found or not all(stack.is_current() for stack in stacks):
            stacks = self._stacked(members, states, group)
            if index is not None:
                self._stacks[index] = found, stacks
        for stack in stacks:
            stack.period = group["period"]
            self.move(stack, group, scratch)
            stack.step += 1
            for slot in stack.slots:
                slot.state["step"] = stack.step

    def _stacked(self, members: Members, states: Mapping, group: Mapping[str, Any]) -> list[Stack]:
        """Parameters that have as many steps behind them and whatever else a direction asks for, until they fill a chunk."""
        stacks: list[Stack] = []
        filling: dict[tuple, Stack] = {}
        for p, layout in members:
            slot, key = self.slot(p, states[p], layout)
            alike = (key, wide_type(p), slot.grad.dtype, p.device, slot.state["step"])
            stack = filling.setdefault(alike, Stack([], key, slot.state["step"], group["period"]))
            stack.slots.append(slot)
            if sum(slot.p.numel() for slot in stack.slots) / group["period"] >= chunk_size(p.device):
                stacks.append(filling.pop(alike))
        stacks += filling.values()
        for stack in stacks:
            self.adopt(stack)
        return stacks

    @property
    def _stacks(self) -> dict[int | None, tuple[tuple, list[Stack]]]:
        """By group. Copies and pickles of an optimizer begin with none: they go by its states alone."""
        return self.__dict__.setdefault("_stacks_by_group", {})

    @property
    def _check(self) -> GradientCheck:
        return self.__dict__.setdefault("_gradient_check", GradientCheck())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; its settings (momentum, learning rates, …) replace ours, as in torch.

        Parameters
        ----------
        state_dict : dict
            What ``state_dict()`` of such an optimizer gave.

        Raises
        ------
        MupError
            If its groups treat parameters in another way, or by other multipliers.

        Examples
        --------
        >>> from neuralop.models import FNO
        >>> import neuralop_mup as nm
        >>> model = nm.parametrize(FNO((8,), 1, 1, 16))
        >>> state = nm.MuSOAP(model, steps=1000).state_dict()
        >>> nm.MuSOAP(model, steps=1000).load_state_dict(state)
        """
        ours = [group["layouts"] for group in self.param_groups]
        groups = state_dict.get("param_groups", ()) if isinstance(state_dict, Mapping) else ()
        # Up to 0.1 pairs of real numbers had no letter.
        if [_plain(layouts) for layouts in ours] != [_plain(group.get("layouts")) for group in groups]:
            raise MupError(
                f"This state is not of a {type(self).__name__} over the same parameters (their layouts differ): load it "
                "into the optimizer and the model that it was saved from."
            )
        # Settings that 0.1 did not have are ours; but its learning rates, which are loaded, followed from no steps.
        groups = [
            {**{key: own[key] for key in _NEW}, **dict.fromkeys({"steps"} & own.keys()), **theirs}
            for own, theirs in zip(self.param_groups, groups, strict=True)
        ]
        state_dict = {**state_dict, "param_groups": groups}
        self._check_state(state_dict)
        check_optimizer_state(self, state_dict)  # the same parameters under another base or rule
        super().load_state_dict(state_dict)
        self._stacks.clear()
        for group, layouts in zip(self.param_groups, ours, strict=True):
            group["layouts"] = layouts
        # torch casts every average to its parameter's type.
        for group, theirs in zip(self.param_groups, state_dict["param_groups"], strict=True):
            for p, key in zip(group["params"], theirs["params"], strict=True):
                for name, value in state_dict["state"].get(key, {}).items():
                    if torch.is_tensor(value) and torch.is_floating_point(as_real(value)):
                        self.state[p][name] = value.to(self.state[p][name].device, wide_type(value))

    def _check_state(self, state_dict: Mapping[str, Any]) -> None:
        """Refuse the state of another optimizer (its settings have other names), or of parameters of other shapes."""
        for ours, theirs in zip(self.param_groups, state_dict["param_groups"], strict=True):
            # Of the defaults those that our group has: torch adds a name to them when a state is loaded.
            if missing := sorted((set(self.defaults) & set(ours)) - set(theirs)):
                raise MupError(
                    f"This state is not of a {type(self).__name__}: its group {ours.get('name')!r} has no {missing[0]!r}. "
                    "Load it into the optimizer that it was saved from."
                )
            for p, layout, key in zip(ours["params"], ours["layouts"] or (), theirs["params"], strict=False):
                saved = state_dict["state"].get(key)
                if not saved:  # nothing was kept of it: whoever looks at a state that is not there yet leaves an empty one
                    continue
                expected = {name: v.shape for name, v in self.new_state(p, layout, theirs).items() if torch.is_tensor(v)}
                if expected != {name: tuple(v.shape) for name, v in saved.items() if torch.is_tensor(v)}:
                    raise MupError(
                        f"The state of number {key} has other averages than {type(self).__name__} keeps of a parameter of "
                        f"shape {tuple(p.shape)}: it was saved from another model or with other settings."
                    )


def _plain(layouts: Sequence[str] | None) -> list[str] | None:
    return None if layouts is None else [plain_layout(layout) for layout in layouts]
