"""One optimizer step for many like models at once: torch's own formulas with a number for each model.

Every model keeps an optimizer of its own, so schedulers, hooks and checkpoints work as they are. What is done together is
the arithmetic: in small models the calls cost more than the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["StackedStep"]

#: Switches of torch's optimizers that change the formula.
_SWITCHES = ("amsgrad", "maximize", "capturable", "differentiable", "fused", "dampening")


class StackedStep:
    """Steps the optimizers of models whose parameters are slices of stacked tensors.

    Adam, AdamW and SGD of torch itself are stepped together, equal to torch's step to rounding; any other optimizer by its
    own ``step``, one model after another. States lie in stacked tensors, too, and each optimizer holds its slices.

    Parameters
    ----------
    optimizers : sequence of torch.optim.Optimizer
        One for each of the R models.
    parameters : sequence of sequences of torch.nn.Parameter
        ``parameters[r][i]`` is a view of ``stacks[i][r]``.
    stacks : sequence of torch.Tensor
        Each of shape ``(R, *shape)``.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        parameters: Sequence[Sequence[torch.nn.Parameter]],
        stacks: Sequence[torch.Tensor],
    ) -> None:
        self.optimizers, self.parameters = list(optimizers), [list(row) for row in parameters]
        self._stacks = [stack.detach() for stack in stacks]
        self._formula, keys = _formula(self.optimizers)
        if self._formula is None:
            return
        groups_of = [{id(p): g for g in o.param_groups for p in g["params"]} for o in self.optimizers]
        columns: dict[tuple, tuple[list[dict], list[int]]] = {}
        for i in range(len(stacks)):
            found = [of.get(id(row[i])) for of, row in zip(groups_of, self.parameters, strict=True)]
            groups = [group for group in found if group is not None]
            if len(groups) == len(found):
                columns.setdefault(tuple(map(id, groups)), (groups, []))[1].append(i)
        self._columns = list(columns.values())  # models may share their parameters out to groups differently
        self._counts = torch.stack([torch.stack([self._state(r, i, "step") for i in self._range]) for r in self._runs])
        self._states = [
            {key: torch.stack([self._state(r, i, key) for r in self._runs]) for key in keys} for i in self._range
        ]
        for r in self._runs:
            for i in self._range:
                own = {key: stack[r] for key, stack in self._states[i].items()}
                self.optimizers[r].state[self.parameters[r][i]].update(own)
                if self._formula is _adam:
                    self.optimizers[r].state[self.parameters[r][i]]["step"] = self._counts[r, i]

    @property
    def _runs(self) -> range:
        return range(len(self.optimizers))

    @property
    def _range(self) -> range:
        return range(len(self._stacks))

    def _state(self, r: int, i: int, key: str) -> torch.Tensor:
        p = self.parameters[r][i]
        fresh = torch.tensor(0.0, dtype=torch.float32) if key == "step" else torch.zeros_like(p, requires_grad=False)
        found = self.optimizers[r].state[p].get(key) if p in self.optimizers[r].state else None
        return fresh if found is None else found.detach()

    @torch.no_grad()
    def step(self, gradients: Sequence[torch.Tensor | None]) -> dict[int, Exception]:
        """One step of every model.

        Parameters
        ----------
        gradients : sequence
            One stacked gradient a parameter, or None for one that the loss does not depend on.

        Returns
        -------
        dict of int to Exception
            The models whose optimizer refused, and what it said; the others were stepped.
        """
        for i, gradient in enumerate(gradients):
            slices = [None] * len(self.optimizers) if gradient is None else gradient.unbind()
            for row, part in zip(self.parameters, slices, strict=True):
                row[i].grad = part
        refused: dict[int, Exception] = {}
        for r, optimizer in enumerate(self.optimizers):
            try:
                if self._formula is None:
                    optimizer.step()
                else:
                    for hook in optimizer._optimizer_step_pre_hooks.values():  # clipping, and what follow_plan holds to
                        hook(optimizer, (), {})
            except Exception as error:  # of this model alone
                refused[r] = error
        if self._formula is not None:
            self._together(gradients)
            for optimizer in self.optimizers:
                for hook in optimizer._optimizer_step_post_hooks.values():
                    hook(optimizer, (), {})
                optimizer._opt_called = True  # type: ignore[attr-defined]  # what schedulers look at
        return refused

    def _together(self, gradients: Sequence[Any]) -> None:
        assert self._formula is not None
        self._counts.add_(1)
        for groups, indices in self._columns:
            live = [i for i in indices if gradients[i] is not None]
            if not live:
                continue
            counts = self._counts[:, live[0]].tolist()
            how: dict[str, Any] = {"decays": any(g["weight_decay"] for g in groups), "nesterov": groups[0].get("nesterov")}
            how["decoupled"] = _decoupled(self.optimizers[0], groups[0])
            numbers: dict[tuple, list[torch.Tensor]] = {}
            for i in live:
                p, gradient = self._stacks[i], gradients[i]
                state = self._states[i]
                if p.is_complex() and self._formula is _adam:  # torch's Adam moves real and imaginary parts by themselves
                    p, gradient = torch.view_as_real(p), torch.view_as_real(gradient.resolve_conj())
                    state = {key: torch.view_as_real(value) for key, value in state.items()}
                real = p.dtype.to_real() if p.is_complex() else p.dtype
                if (real, p.ndim) not in numbers:
                    rows = torch.tensor(
                        _numbers(self._formula, groups, counts, how["decoupled"]), dtype=real, device=p.device
                    )
                    numbers[real, p.ndim] = list(rows.reshape(*rows.shape, *(1,) * (p.ndim - 1)).unbind())
                self._formula(p, gradient, state, how, *numbers[real, p.ndim])


def _formula(optimizers: Sequence[torch.optim.Optimizer]) -> tuple[Callable[..., None] | None, tuple[str, ...]]:
    """The formula that all of them share, with the names of its states; None where each must step by itself."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    kinds = {type(optimizer) for optimizer in optimizers}
    plain = not any(group.get(switch) for group in groups for switch in _SWITCHES)
    if not plain or any(torch.is_tensor(value) for group in groups for value in group.values()) or len(kinds) > 1:
        return None, ()
    if kinds <= {torch.optim.Adam, torch.optim.AdamW}:
        return _adam, ("exp_avg", "exp_avg_sq")
    if (
        kinds == {torch.optim.SGD}
        and len({bool(g["momentum"]) for g in groups}) == len({g["nesterov"] for g in groups}) == 1
    ):
        return _sgd, ("momentum_buffer",) if groups[0]["momentum"] else ()
    return None, ()


def _numbers(formula: Any, groups: Sequence[dict], counts: Sequence[float], decoupled: bool) -> list[list[float]]:
    """Each of a formula's numbers, one for each model."""
    lr, decay = [float(g["lr"]) for g in groups], [g["weight_decay"] for g in groups]
    if formula is _sgd:
        return [lr, decay, [g["momentum"] for g in groups]]
    beta1, beta2 = ([g["betas"][i] for g in groups] for i in (0, 1))
    if decoupled:
        decay = [1 - a * b for a, b in zip(lr, decay, strict=True)]
    return [
        decay,
        [1 - b for b in beta1],
        beta2,
        [1 - b for b in beta2],
        [math.sqrt(1 - b**t) for b, t in zip(beta2, counts, strict=True)],
        [g["eps"] for g in groups],
        [-a / (1 - b**t) for a, b, t in zip(lr, beta1, counts, strict=True)],
    ]


def _decoupled(optimizer: torch.optim.Optimizer, group: dict) -> bool:
    return isinstance(optimizer, torch.optim.AdamW) or bool(group.get("decoupled_weight_decay"))


def _adam(p, gradient, state, how, decay, rest1, beta2, rest2, root, eps, size) -> None:
    """torch.optim.Adam and AdamW, operation by operation as ``_single_tensor_adam`` has them (Kingma, Ba, 1412.6980)."""
    if how["decays"]:
        if how["decoupled"]:
            p.mul_(decay)
        else:
            gradient = gradient + decay * p
    mean, square = state["exp_avg"].lerp_(gradient, rest1.expand_as(gradient)), state["exp_avg_sq"]
    square.mul_(beta2).addcmul_(gradient, gradient * rest2)
    p.addcdiv_(mean * size, (square.sqrt() / root).add_(eps))


def _sgd(p, gradient, state, how, lr, decay, momentum) -> None:
    """torch.optim.SGD without dampening."""
    if how["decays"]:
        gradient = gradient + decay * p
    if state:
        buffer = state["momentum_buffer"].mul_(momentum).add_(gradient)
        gradient = gradient + momentum * buffer if how["nesterov"] else buffer
    p.sub_(lr * gradient)
