r"""Learning rates that are learned while a model trains, by their hypergradient.

A *unit* u (a role, a layer or a param group) has one multiplier :math:`m_u = e^{a_u}` on its learning rate. A step is
linear in the learning rate for every optimizer here, decay included: :math:`p_{t+1} = p_t + \Delta_t` with
:math:`\Delta_t = m_u v_t`, where :math:`v_t` does not depend on :math:`m_u`. So, with the next batch's loss L and its
gradient :math:`g_{t+1}` at :math:`p_{t+1}`, the chain rule gives the *hypergradient* exactly, without a second backward
pass:

.. math:: \frac{\partial L(p_{t+1})}{\partial a_u} = h_u
   = \sum_{p \in u} \operatorname{Re}\langle g_{t+1}, \Delta_t \rangle .

It has the units of the loss, and a size that changes with width and during training. What is followed is the cosine of
gradient and last update, which is in [-1, 1] and zero where h is:

.. math:: a_u \leftarrow a_u - \beta\, c_u , \qquad
   c_u = \frac{h_u}{\lVert g_{t+1} \rVert_u \, \lVert \Delta_t \rVert_u} .

If the loss still falls along the last update the rate grows, if it rises the rate shrinks, by at most a factor of
:math:`e^{\beta}` a step. β is ``hyper_lr``; neither the loss's scale nor clipping by the global norm changes anything.

Sources: Baydin et al., "Online Learning Rate Adaptation with Hypergradient Descent", ICLR 2018, arXiv:1703.04782 (section
3, and the multiplicative rule, which normalises by these two norms; here with the exponential as its link, so that
multipliers stay positive); Chandra et al., "Gradient Descent: The Ultimate Optimizer", NeurIPS 2022, arXiv:1909.13371.
What it cannot see: the loss one step ahead is not the loss at the end (Wu et al., "Understanding Short-Horizon Bias in
Stochastic Meta-Optimization", ICLR 2018, arXiv:1803.02021).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.parametrize import get_plan
from neuralop_mup.core.rules import ROLES
from neuralop_mup.core.unwrap import is_sharded
from neuralop_mup.errors import Diverged, MupError, nearest
from neuralop_mup.optim.follow import follower_of, set_mult, step_lr
from neuralop_mup.optim.groups import number_equal_names
from neuralop_mup.optim.on_plan import unwrap_optimizer
from neuralop_mup.validation import check_count, is_multiplier, is_number

_BY = ("role", "layer", "group")
# Steps that a multiplier may press against a bound. It is then not a fluctuation: the answer lies outside.
_PATIENCE = 100
# On an optimizer whose rates are being learned; torch leaves it out of copies, as it does the hooks.
_LEARNING = "_neuralop_mup_learning"
# Lists of a group with one entry for each of its parameters; they are split with them.
_PARALLEL = ("params", "param_names", "layouts")


class LearnedRates:
    """Learn a multiplier on the learning rate of each role, layer or param group while the optimizer trains.

    It hangs on the hooks of ``optimizer.step``, so that the training loop stays as it is. The multiplier stands in each
    group as ``learned_mult``, one of its ``step_mults``, and applies for the step alone: ``lr`` stays with the schedulers.
    Weight decay follows it, as it does ``lr_mult``. Roles that share a group get groups of their own.
    ``optimizer.state_dict()`` holds everything, so that a resumed run goes on bit for bit.

    Build it after the optimizer, before a scheduler and before ``load_state_dict``. It keeps one copy of the parameters.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Of :func:`~neuralop_mup.MuAdam`, ``MuAdamW``, ``MuSGD`` or ``MuSOAP``, or any that
        :func:`~neuralop_mup.follow_plan` holds to a plan.
    by : {"role", "layer", "group"}, default "role"
        What has a multiplier of its own; a layer is the module that holds a parameter.
    hyper_lr : float, default 0.05
        β: the largest change of a multiplier's logarithm in one step, above 0 and at most 1.
    roles : sequence of str, optional
        The roles whose rates are learned; all of them if not given. The others keep what the rule says.
    bounds : (float, float), default (0.03125, 32.0)
        Smallest and largest multiplier, below and above 1.
    until : int, optional
        Learn for so many steps, then keep what was learned, e.g. until a schedule begins to decay: multipliers otherwise
        grow against it.

    Attributes
    ----------
    latest : list of dict
        ``kind``, ``name``, ``value`` of the last step that learned: ``hypergradient`` h and ``cosine`` c of each unit.

    Raises
    ------
    MupError
        If the optimizer is not held to a plan, has learned rates already, has a scheduler although groups must be split, its
        model is sharded, or an argument is not usable. In ``optimizer.step``: with a closure, whose gradient comes too late.
    Diverged
        In ``optimizer.step``, before anything is changed: if a cosine is not finite, or a multiplier has pressed against a
        bound for 100 steps.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((8,), 1, 1, 16), base={"hidden_channels": 8})
    >>> optimizer = nm.MuAdamW(model, lr=4e-3)
    >>> rates = nm.LearnedRates(optimizer, by="role", until=500)
    >>> sorted(rates.mults)
    ['hidden', 'input', 'readout', 'spectral', 'vector']
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        by: str = "role",
        hyper_lr: float = 0.05,
        *,
        roles: Sequence[str] | None = None,
        bounds: tuple[float, float] = (1 / 32, 32.0),
        until: int | None = None,
    ) -> None:
        _check_settings(by, hyper_lr, roles, bounds, until)
        optimizer = unwrap_optimizer(optimizer)
        follower = follower_of(optimizer)
        if follower is None:
            raise MupError(
                f"LearnedRates needs an optimizer that is held to a plan, and this {type(optimizer).__name__} is not: build "
                "it as neuralop_mup.MuAdamW(model, lr=…) or another of neuralop_mup's, or call neuralop_mup.follow_plan."
            )
        if getattr(optimizer, _LEARNING, False):
            raise MupError("This optimizer's rates are being learned already: call close() on the first LearnedRates.")
        if is_sharded(follower.model):
            raise MupError(
                f"The parameters of this {type(follower.model).__name__} are sharded, and LearnedRates takes inner products "
                "of whole ones: learn rates on one device, or under DistributedDataParallel, and hand them on as lr_mult."
            )
        groups = _split(optimizer.param_groups, _units_of(follower.model, optimizer, by, roles))
        if len(groups) != len(optimizer.param_groups) and any("initial_lr" in group for group in optimizer.param_groups):
            # A scheduler keeps one number for each group that it found.
            raise MupError(
                f"This optimizer has a scheduler already, and to learn the rates its {len(optimizer.param_groups)} groups "
                f"must become {len(groups)}: build LearnedRates before the scheduler."
            )
        self.optimizer, self.by = optimizer, by
        self.hyper_lr, self.until = hyper_lr, until
        self.latest: list[dict[str, Any]] = []
        self._log_bounds = tuple(math.log(bound) for bound in bounds)
        self._last: dict[torch.Tensor, torch.Tensor] = {}  # the last update; during a step, the parameter before it
        self._inside = False
        optimizer.param_groups[:] = groups
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
            optimizer.register_state_dict_post_hook(self._save),
            optimizer.register_load_state_dict_pre_hook(self._load),
        ]
        follower.attach(optimizer)  # behind these hooks: a multiplier applies to the step whose gradient it was learned from
        setattr(optimizer, _LEARNING, True)

    @property
    def mults(self) -> dict[str, float]:
        """The multiplier of each unit, relative to the rule, now.

        Returns
        -------
        dict of str to float
            By the unit's name; 1 where nothing was learned yet.

        Examples
        --------
        >>> rates.mults
        {'vector': 1.0, 'input': 1.0, 'spectral': 1.0, 'hidden': 1.0, 'readout': 1.0}
        """
        return {unit: groups[0]["learned_mult"] for unit, groups in self._groups().items()}

    @property
    def lr_mult(self) -> dict[str, float]:
        """The multiplier of each role, the optimizer's own ``lr_mult`` included: what a larger model's optimizer takes.

        Returns
        -------
        dict of str to float
            By role; roles whose multiplier is 1 because nothing was learned of them may be left out.

        Raises
        ------
        MupError
            If multipliers are not by role.

        Examples
        --------
        After training, for a larger model:

        >>> target = nm.parametrize(FNO((8,), 1, 1, 32), base={"hidden_channels": 8})
        >>> optimizer = nm.MuAdamW(target, lr=4e-3, lr_mult=rates.lr_mult)
        """
        if self.by != "role":
            raise MupError(f"lr_mult is by role, and these rates were learned by {self.by!r}: learn them with by='role'.")
        found: dict[str, float] = {}
        for group in self.optimizer.param_groups:
            own = group["lr_mult"] / group["rule_mult"] if "lr_mult" in group else 1.0
            if "learned" in group:
                found[group["learned"]["of"]] = group["learned_mult"] * own
            elif own != 1:  # of roles that are not learned
                found |= dict.fromkeys(group["name"].removeprefix("aux ").split()[0].split("+"), own)
        return found

    def summary(self) -> str:
        """A table: what the rule gives each group, what was learned on top, and the learning rate of its next step.

        Returns
        -------
        str
            Markdown, a line for each group.

        Examples
        --------
        >>> print(rates.summary())
        | group | learned | rule × | learned × | lr |
        | --- | --- | --- | --- | --- |
        | vector | vector | 1 | 1 | 0.004 |
        | input | input | 1 | 1 | 0.004 |
        | spectral | spectral | 0.4884 | 1 | 0.001954 |
        | hidden | hidden | 0.5 | 1 | 0.002 |
        | readout | readout | 0.5 | 1 | 0.002 |
        """
        lines = ["| group | learned | rule × | learned × | lr |", "| --- | --- | --- | --- | --- |"]
        for group in self.optimizer.param_groups:
            of, learned = (group["learned"]["of"], group["learned_mult"]) if "learned" in group else ("–", 1.0)
            rule = f"{group['lr_mult']:.4g}" if "lr_mult" in group else "–"  # a group that somebody added
            lines.append(f"| {group.get('name', '')} | {of} | {rule} | {learned:.4g} | {step_lr(group):.4g} |")
        return "\n".join(lines)

    def close(self) -> None:
        """Stop learning. What was learned stays in the groups and applies.

        Examples
        --------
        >>> rates.close()
        """
        for handle in self._handles:
            handle.remove()
        self._handles, self._last = [], {}
        setattr(self.optimizer, _LEARNING, False)

    def _groups(self) -> dict[str, list[dict[str, Any]]]:
        """The groups of each unit."""
        units: dict[str, list[dict[str, Any]]] = {}
        for group in self.optimizer.param_groups:
            if "learned" in group:
                units.setdefault(group["learned"]["of"], []).append(group)
        return units

    def _learning(self) -> dict[str, list[torch.Tensor]]:
        """Of each unit that still learns, the parameters with a gradient."""
        return {
            unit: [p for group in groups for p in group["params"] if p.grad is not None]
            for unit, groups in self._groups().items()
            if self.until is None or groups[0]["learned"]["steps"] < self.until
        }

    @torch.no_grad()
    def _before(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        if any(callable(value) for value in (*args, *kwargs.values())):
            raise MupError(
                "LearnedRates reads the gradient before a step, and a closure computes it within: call backward() first, "
                "then optimizer.step() without a closure."
            )
        if not self._inside:  # else a hook that torch calls twice, or the step before this one raised
            self._learn()
        self._inside = True
        self._last = {}  # before copies are made: there is memory for one
        self._last = {p: p.detach().clone() for params in self._learning().values() for p in params}

    @torch.no_grad()
    def _after(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        if not self._inside:
            return
        self._inside = False
        self._last = {p: torch.sub(p, before, out=before) for p, before in self._last.items()}
        for groups in self._groups().values():
            for group in groups:
                group["learned"]["steps"] += 1

    def _learn(self) -> None:
        """One step of every multiplier; nothing is changed if one of them cannot be made."""
        units = self._groups()
        products = {unit: _products(params, self._last) for unit, params in self._learning().items()}
        sums = {unit: torch.stack(each).sum(0) for unit, each in products.items() if each}
        if not sums:
            return
        device = next(iter(sums.values())).device
        values = torch.stack([total.to(device) for total in sums.values()]).tolist()  # one wait for the device a step
        found = dict(zip(sums, values, strict=True))
        cosines = {unit: _cosine(unit, *three) for unit, three in found.items()}
        changes = {unit: self._moved(unit, units[unit][0], cosine) for unit, cosine in cosines.items()}
        for unit, (mult, pressed) in changes.items():
            for group in units[unit]:
                group["learned_mult"], group["learned"]["at_bound"] = mult, pressed
        self.latest = [
            {"kind": kind, "name": unit, "value": value}
            for unit, (h, *_) in found.items()
            for kind, value in (("hypergradient", h), ("cosine", cosines[unit]))
        ]

    def _moved(self, unit: str, group: dict[str, Any], cosine: float) -> tuple[float, int]:
        """The multiplier after a step, and for how many steps it has been pressing against a bound."""
        low, high = self._log_bounds
        wanted = math.log(group["learned_mult"]) - self.hyper_lr * cosine
        log = min(max(wanted, low), high)
        pressed = group["learned"]["at_bound"] + 1 if log != wanted else 0
        if pressed >= _PATIENCE:
            side, remedy = ("largest", "raise") if wanted > high else ("smallest", "lower")
            raise Diverged(
                f"The learning rate of {unit!r} diverges: its learned multiplier has pressed against the {side} allowed, "
                f"{math.exp(log):.4g}, for {_PATIENCE} steps. This step was not taken. Either {remedy} the optimizer's lr, "
                "or stop learning before a schedule decays (until=…), lower hyper_lr, or widen bounds."
            )
        return math.exp(log), pressed

    def _save(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        # After a step that was refused there is no last update: what is held then are the weights before it.
        known = {} if self._inside else self._last
        last = {i: known[p].clone() for i, p in enumerate(_parameters(optimizer)) if p in known}
        state["learned_rates"] = {"by": self.by, "last": last}

    def _load(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        saved = state.get("learned_rates")
        ours, theirs = (
            [group.get("learned", {}).get("of") for group in groups]
            for groups in (optimizer.param_groups, state.get("param_groups", []))
        )
        if not isinstance(saved, Mapping) or ours != theirs:
            raise MupError(
                "This optimizer state was saved without learned rates, or with rates learned over other units, and here "
                f"they are learned by {self.by!r}: build LearnedRates as it was when the state was saved, or load the state "
                "first and build LearnedRates after."
            )
        parameters, last = dict(enumerate(_parameters(optimizer))), saved.get("last")
        if last is None or any(i not in parameters or parameters[i].shape != u.shape for i, u in last.items()):
            raise MupError(
                "The last updates in this optimizer state do not fit its parameters (their numbers or shapes differ): it "
                "was cut off or edited; load it as optimizer.state_dict() gave it."
            )
        self._last = {parameters[i]: u.to(parameters[i].device, copy=True) for i, u in last.items()}
        self._inside = False


def _products(params: Sequence[torch.Tensor], last: dict[torch.Tensor, torch.Tensor]) -> list[torch.Tensor]:
    """⟨g, Δ⟩, ‖g‖² and ‖Δ‖² of each parameter that has both."""
    pairs = ((_flat(p.grad), _flat(last[p])) for p in params if p in last and p.grad is not None)
    return [torch.stack([g.dot(update), g.dot(g), update.dot(update)]).double() for g, update in pairs]


def _cosine(unit: str, h: float, of_gradient: float, of_update: float) -> float:
    squared = of_gradient * of_update
    if not (math.isfinite(h) and math.isfinite(squared)):
        raise Diverged(
            f"The hypergradient of {unit!r} is not finite ({h:g}), so its learning rate cannot be learned and this "
            "step was not taken: lower the learning rate, or clip gradients."
        )
    return h / math.sqrt(squared) if squared > 0 else 0.0  # zero: a learning rate of zero, or no gradient


def _flat(x: torch.Tensor) -> torch.Tensor:
    x = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    return x.reshape(-1).to(torch.promote_types(x.dtype, torch.float32))


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _check_settings(by: Any, hyper_lr: Any, roles: Any, bounds: Any, until: Any) -> None:
    if not isinstance(by, str) or by not in _BY:
        raise MupError(f"LearnedRates cannot learn by {by!r}: {nearest(str(by), _BY)}")
    if not (is_number(hyper_lr) and 0 < hyper_lr <= 1):
        raise MupError(
            f"hyper_lr is {hyper_lr!r}; give a number above 0 and at most 1, such as 0.05: a multiplier changes by at most "
            "exp(hyper_lr) in one step."
        )
    if until is not None:
        check_count("until", until, "steps")
    two = isinstance(bounds, Sequence) and len(bounds) == 2 and all(map(is_multiplier, bounds))
    if not (two and bounds[0] < 1 < bounds[1]):
        raise MupError(f"bounds is {bounds!r}; give two numbers, one below 1 and one above, such as (1/32, 32).")
    if roles is not None and not (
        isinstance(roles, Collection) and not isinstance(roles, str) and all(isinstance(role, str) for role in roles)
    ):
        raise MupError(f"roles is {roles!r}; give a list of roles, such as ['spectral', 'hidden'].")


# Units, and param groups of one unit each


def _units_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, by: str, roles: Collection[str] | None
) -> dict[torch.Tensor, str]:
    """The unit of each parameter that has one."""
    rows = {row.name: row for row in get_plan(model).rows}
    here = sorted({row.role for row in rows.values()})
    if unknown := [role for role in roles or () if role not in here]:
        raise MupError(f"There is no role {unknown[0]!r} to learn a rate for: {nearest(unknown[0], here)}")
    group_of = {p: str(g.get("name", i)) for i, g in enumerate(optimizer.param_groups) for p in g["params"]}
    held = {name: p for name, p in model.named_parameters() if p in group_of}
    if added := [name for name in held if name not in rows]:
        raise MupError(
            f"Parameter {added[0]!r} was added to the model after parametrize, so that it has no role and no rule: "
            "parametrize the finished model, or leave the parameter to an optimizer of its own."
        )
    return {
        p: {"role": rows[name].role, "layer": rows[name].owner, "group": group_of[p]}[by]
        for name, p in held.items()
        if roles is None or rows[name].role in roles
    }


def _split(groups: Sequence[dict[str, Any]], units: dict[torch.Tensor, str]) -> list[dict[str, Any]]:
    """The groups, in order, each split into those of one unit."""
    parts: list[dict[str, Any]] = []
    for group in groups:
        own = list(dict.fromkeys(units.get(p) for p in group["params"]))
        for unit in own:
            kept = [i for i, p in enumerate(group["params"]) if units.get(p) == unit]
            part = {
                key: [value[i] for i in kept] if key in _PARALLEL and value is not None else value
                for key, value in group.items()
                if key != "learned"
            }
            if len(own) > 1:
                name, of = str(group.get("name", "")), unit or "the rest"
                # A role takes the place of the roles in its group's name ("aux input+vector": "aux input").
                words = [of if "+" in word else word for word in name.split()]
                part["name"] = " ".join(words) if of in ROLES else f"{name} / {of}"
            if unit is not None:
                set_mult(part, "learned_mult", group.get("learned_mult", 1.0))
                part["learned"] = {"steps": 0, "at_bound": 0, **group.get("learned", {}), "of": unit}
            parts.append(part)
    number_equal_names([part for part in parts if "name" in part])
    return parts
