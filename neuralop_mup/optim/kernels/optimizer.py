"""What MuMuon and MuSOAP share: groups, checks, AdamW for the rest, sharded and shared work. Their directions differ."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.adamw import adamw

from neuralop_mup.core.multipliers import check_multipliers
from neuralop_mup.core.parametrize import get_plan
from neuralop_mup.core.rules import ROLES
from neuralop_mup.core.unwrap import unwrap
from neuralop_mup.errors import MupError
from neuralop_mup.optim.check_optimizer import check_optimizer_state
from neuralop_mup.optim.kernels.gradients import check_gradients
from neuralop_mup.optim.kernels.layouts import fourier_depth, is_paired, matrix_layouts
from neuralop_mup.optim.kernels.precision import full_precision
from neuralop_mup.optim.kernels.scratch import Scratch
from neuralop_mup.optim.kernels.tensors import as_real, is_sharded, part, whole, wide, wide_type
from neuralop_mup.optim.param_groups import decay_factor, param_groups
from neuralop_mup.optim.step_hooks import follow_plan
from neuralop_mup.validation import check_count, check_decay, check_number, is_number

__all__ = ["AUX_LR", "BASE_DEPTH", "Block", "KernelOptimizer", "inside_compiled", "not_compiled"]

AUX_LR = 4e-3
BASE_DEPTH = 4
# Numbers (a complex one counts once) that are worked on at a time: on a CPU temporaries then stay in its cache, on
# other devices they fill it.
_CHUNK = {"cpu": 2**17}
_CHUNK_ELSEWHERE = 2**25

# torch.compile is kept to the functions of tensors, where the work is. A method of an optimizer would, compiled, take every
# parameter for the first one that it saw (torch 2.13), and the rest would be compiled anew for each shape and layout.
# torch's own optimizers use this decorator: unlike torch.compiler.disable it loads the compiler when it is called first.
not_compiled = torch._disable_dynamo
inside_compiled = partial(torch._disable_dynamo, recursive=False)


@dataclass(frozen=True)
class Block:
    """One parameter that takes matrix updates, with everything that a step needs, as whole tensors.

    Attributes
    ----------
    p, grad : torch.Tensor
        The parameter, to be changed in place, and its gradient.
    layout : str
        See :mod:`neuralop_mup.optim.kernels.layouts`.
    state : dict
        The optimizer's state of it, to be changed in place; empty before the first step.
    """

    p: torch.Tensor
    grad: torch.Tensor
    layout: str
    state: dict[str, Any]


class KernelOptimizer(torch.optim.Optimizer):
    """Matrix updates for kernels and hidden linear layers, AdamW under the model's plan for input, readout and vectors.

    A subclass says in :meth:`update` how blocks of one shape move, and names in ``sharded_state`` the entries of its state
    that have the parameter's shape. Everything else is here, once.

    Raises
    ------
    MupError
        If the model is not parametrized, has no Fourier kernel, or a number is not usable; in :meth:`step`, if a gradient
        is not finite or its squares overflow, before anything is changed.
    """

    sharded_state: ClassVar[tuple[str, ...]]
    usual_lr: ClassVar[float]
    _process_group: dist.ProcessGroup | None = None  # on the class: copies and pickles of an optimizer share nothing

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
    ) -> None:
        self._check_rates(lr, aux_lr)
        check_decay("betas", betas)
        check_number("weight_decay", weight_decay)
        check_number("eps", eps)
        if process_group is not None and not isinstance(process_group, dist.ProcessGroup):
            raise MupError(
                f"process_group is {process_group!r}, which is no group of processes: give a torch.distributed.ProcessGroup "
                "such as torch.distributed.group.WORLD, or None where nothing is shared."
            )
        if base_depth is not None:
            check_count("base_depth", base_depth, "Fourier layers")
        aux_lr, model = AUX_LR if aux_lr is None else aux_lr, unwrap(model)
        groups = _groups(type(self).__name__, model, lr, aux_lr, base_depth, weight_decay, lr_mult)
        self._process_group = process_group
        super().__init__(
            groups, {"lr": lr, "weight_decay": weight_decay, "betas": tuple(betas), "eps": eps, **dict(settings)}
        )
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

    @abstractmethod
    def update(self, blocks: Sequence[Block], group: Mapping[str, Any], scratch: Scratch) -> None:
        """Move blocks that have a :meth:`pack_key` in common by one step, in place."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group for AdamW, or with ``layouts`` for matrix updates (:mod:`neuralop_mup.optim.kernels.layouts`)."""
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
            and all(
                set(x) <= set("lcbio") and p.ndim - is_paired(p, x) == len(x) for p, x in zip(params, layouts, strict=True)
            )
        ):
            raise MupError(
                f"The group's layouts {layouts} do not fit its parameters: one letter (l, c, b, i or o) for each axis."
            )
        super().add_param_group({"layouts": None, **param_group, "params": params})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step on the gradients as they are (accumulated, all-reduced).

        Raises
        ------
        MupError
            If a gradient holds a NaN or an infinity, or is so large that its squares overflow (in float32 from a norm of
            1e16 on): nothing was changed then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        check_gradients(self.param_groups)
        self._step()
        return loss

    @inside_compiled
    def _step(self) -> None:
        scratch = Scratch()
        kinds = {p.device.type for group in self.param_groups for p in group["params"]}
        with full_precision(kinds):
            for group in self.param_groups:
                if group["layouts"] is None:
                    self._adamw(group)
                else:
                    self._matrices(group, scratch)

    @inside_compiled
    def _matrices(self, group: dict[str, Any], scratch: Scratch) -> None:
        turn = 0
        for pack in self._packs(group):
            if self._process_group is None:
                self._move(pack, group, scratch)
                continue
            # Each rank moves some parameters of the pack and sends them, with their state, to the others.
            world, rank = dist.get_world_size(self._process_group), dist.get_rank(self._process_group)
            owners = [(turn + i) % world for i in range(len(pack))]
            turn += len(pack)
            if own := [item for item, owner in zip(pack, owners, strict=True) if owner == rank]:
                self._move(own, group, scratch)
            for (p, layout), owner in zip(pack, owners, strict=True):
                self._send(p, layout, owner, group)

    @inside_compiled
    def _move(self, pack: Sequence[tuple[Any, str]], group: dict[str, Any], scratch: Scratch) -> None:
        """Gather what is sharded, move it, and keep this process's part."""
        blocks = []
        for p, layout in pack:
            state = {key: whole(value) for key, value in self.state[p].items()}
            blocks.append(Block(whole(p.detach()), whole(p.grad), layout, state))
        self.update(blocks, group, scratch)
        for (p, _), block in zip(pack, blocks, strict=True):
            if is_sharded(p):
                p.to_local().copy_(part(block.p, p).to_local())
                self.state[p] = {k: part(v, p) if k in self.sharded_state else v for k, v in block.state.items()}
            else:
                self.state[p] = block.state

    @not_compiled
    def _send(self, p: torch.Tensor, layout: str, owner: int, group: Mapping[str, Any]) -> None:
        """Make a parameter and its state what they are on rank ``owner``."""
        state = self.state[p]
        if not state:
            state.update(self.new_state(p, layout, group))
        tensors = [p.detach(), *(value for value in state.values() if torch.is_tensor(value))]
        assert self._process_group is not None
        source = dist.get_global_rank(self._process_group, owner)
        for tensor in tensors:
            real = as_real(tensor)
            sent = real.contiguous()
            dist.broadcast(sent, source, group=self._process_group)
            if sent.data_ptr() != real.data_ptr():
                real.copy_(sent)
        if owner != dist.get_rank(self._process_group):
            state["step"] += 1

    def _packs(self, group: Mapping[str, Any]) -> Iterator[list[tuple[torch.Tensor, str]]]:
        """Parameters whose blocks can be worked on together, until they fill a chunk."""
        open_packs: dict[tuple, list[tuple[torch.Tensor, str]]] = {}
        for p, layout in zip(group["params"], group["layouts"], strict=True):
            if p.grad is None:
                continue
            key = (self.pack_key(p, layout), p.dtype, is_paired(p, layout), p.device)
            pack = open_packs.setdefault(key, [])
            pack.append((p, layout))
            if sum(q.numel() for q, _ in pack) / group.get("period", 1) >= chunk_size(p.device):
                yield open_packs.pop(key)
        yield from open_packs.values()

    @abstractmethod
    def pack_key(self, p: torch.Tensor, layout: str) -> tuple:
        """What parameters that are updated together have in common."""

    @abstractmethod
    def new_state(self, p: torch.Tensor, layout: str, group: Mapping[str, Any]) -> dict[str, Any]:
        """The state of a parameter before its first step; ``step`` counts from 0."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; its settings (momentum, learning rates, …) replace ours, as in torch.

        Raises
        ------
        MupError
            If its groups treat parameters in another way, or by other multipliers.
        """
        ours = [group["layouts"] for group in self.param_groups]
        groups = state_dict.get("param_groups", ()) if isinstance(state_dict, Mapping) else ()
        if ours != [group.get("layouts") for group in groups]:
            raise MupError(
                f"This state is not of a {type(self).__name__} over the same parameters (their layouts differ): load it "
                "into the optimizer and the model that it was saved from."
            )
        self._check_state(state_dict)
        check_optimizer_state(self, state_dict)  # the same parameters under another base or rule
        super().load_state_dict(state_dict)
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

    @not_compiled
    def _adamw(self, group: dict[str, Any]) -> None:
        params = [p for p in group["params"] if p.grad is not None]
        for p in params:
            if not self.state[p]:
                step = torch.tensor(0.0, dtype=torch.float32)  # whatever the default type: bfloat16 cannot count past 256
                averages = {name: torch.zeros_like(p, dtype=wide_type(p)) for name in ("exp_avg", "exp_avg_sq")}
                self.state[p].update(step=step, **averages)
        states, moved = [self.state[p] for p in params], [wide(p) for p in params]
        adamw(
            moved,
            [wide(p.grad) for p in params],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
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
        for p, new in zip(params, moved, strict=True):
            if new is not p:
                p.copy_(new)


def chunk_size(device: torch.device) -> int:
    """How many numbers to work on at a time."""
    return _CHUNK.get(device.type, _CHUNK_ELSEWHERE)


# ------------------------------------------------------------------------------------------------------------- set up


def _groups(
    optimizer: str,
    model: nn.Module,
    lr: float,
    aux_lr: float,
    base_depth: int | None,
    weight_decay: float,
    lr_mult: Mapping[str, float] | None,
) -> list[dict[str, Any]]:
    plan = get_plan(model)
    rows = {row.name: row for row in plan.rows}
    multipliers = check_multipliers(lr_mult, "lr_mult")
    # Checks that plan and parameters agree, and gives AdamW's groups with everything still in them.
    auxiliary = param_groups(model, aux_lr, "adam", weight_decay=weight_decay, lr_mult=lr_mult)
    parameters = dict(model.named_parameters())
    names = {id(p): name for name, p in parameters.items()}
    if not any(row.role == "spectral" for row in rows.values()):
        raise MupError(
            f"{type(model).__name__} has no Fourier kernel, and {optimizer} is for those: use neuralop_mup.MuAdam."
        )
    # Their updates have one size at every width and number of modes; depth and length are left.
    depth_mult = 1.0 if base_depth is None else math.sqrt(base_depth / fourier_depth(model, rows))
    rule_mult = depth_mult * plan.length_factor
    layouts = matrix_layouts(model, rows)
    groups = []
    for role in ROLES:
        if of_role := [name for name in layouts if rows[name].role == role]:
            multiplier = multipliers.get(role, 1.0)
            groups.append(
                {
                    "params": [parameters[name] for name in of_role],
                    "param_names": of_role,
                    "name": role,
                    "layouts": [layouts[name] for name in of_role],
                    "lr": lr * multiplier * rule_mult,
                    "base_lr": lr,
                    "lr_mult": multiplier * rule_mult,
                    "rule_mult": rule_mult,
                    # Independent: lr · weight_decay is that at base_depth, and in a longer run the sum over its steps is.
                    "weight_decay": weight_decay / rule_mult * decay_factor(plan),
                }
            )
    for group in auxiliary:
        group["base_lr"] = aux_lr
        group["params"] = [p for p in group["params"] if names[id(p)] not in layouts]
        group["param_names"] = [names[id(p)] for p in group["params"]]
        group["name"] = "aux " + "+".join(r for r in ROLES if r in {rows[name].role for name in group["param_names"]})
    auxiliary = [group for group in auxiliary if group["params"]]
    labels = [group["name"] for group in auxiliary]
    for i, (group, label) in enumerate(zip(auxiliary, labels, strict=True)):
        group["name"] = label if labels.count(label) == 1 else f"{label} {labels[: i + 1].count(label)}"
    return groups + auxiliary
