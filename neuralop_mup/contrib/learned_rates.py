r"""Learn learning rates during training by hypergradient descent.

Each unit u (a role, a layer or a single number) has one multiplier :math:`m_u = e^{a_u}` on its learning rate. A step of
every supported optimizer is linear in the learning rate, including decay: :math:`p_{t+1} = p_t + \Delta_t` with
:math:`\Delta_t = m_u v_t`, where :math:`v_t` does not depend on :math:`m_u`. Let L be the next batch's loss and
:math:`g_{t+1}` its gradient at :math:`p_{t+1}`. The chain rule gives the exact *hypergradient* without a second backward
pass:

.. math:: \frac{\partial L(p_{t+1})}{\partial a_u} = h_u
   = \sum_{p \in u} \operatorname{Re}\langle g_{t+1}, \Delta_t \rangle .

Its size depends on the width and changes during training. The update therefore uses a cosine:

.. math:: a_u \leftarrow a_u - \beta\, c_u , \qquad
   c_u = \frac{h_u}{\lVert g_{t+1} \rVert_u \, \lVert \Delta_t \rVert_u} .

The rate grows if the loss still falls along the last update, by at most a factor :math:`e^{\beta}` per step. β is
``hyper_lr``. For a single number the cosine is the sign of :math:`h_u`. With ``normalize=False`` the update is plain
gradient descent, :math:`a_u \leftarrow a_u - \beta\, h_u`.

Sources: Baydin et al., "Online Learning Rate Adaptation with Hypergradient Descent", ICLR 2018, arXiv:1703.04782 (section
3, and the multiplicative rule normalised by these two norms; we use the exponential so that multipliers stay positive);
Chandra et al., "Gradient Descent: The Ultimate Optimizer", NeurIPS 2022, arXiv:1909.13371; Gardès, Juigner, Mazette, "Deep
Learning Frontiers: Hyper-Optimization and Learnable Parameters", student project, ETH Zürich, 2023 (the exponential in
section 2.2, one rate per layer and per parameter in section 2.3). The last source's SGDLW-SGD and SGDPW-SGD are ``MuSGD``
with ``normalize=False``, β = 0.01, and ``by="layer"`` and ``by="parameter"``. Limitation: the loss one step ahead is not the
loss at the end (Wu et al., "Understanding Short-Horizon Bias in Stochastic Meta-Optimization", ICLR 2018,
arXiv:1803.02021).
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from neuralop_mup.core.unwrap import is_sharded
from neuralop_mup.errors import Diverged, MupError, nearest
from neuralop_mup.optim.checks import LR_HOOKS, unwrap_optimizer
from neuralop_mup.optim.groups import number_equal_names
from neuralop_mup.optim.resolved_model import resolve
from neuralop_mup.validation import check_count, is_number

# Multipliers stay between 1/32 and 32.
_LARGEST_LOG = math.log(32)
# Attribute that marks an optimizer with learned rates. Like hooks, it is not copied with the optimizer.
_LEARNING = "_neuralop_mup_learning"
# Lists of a group with one entry per parameter.
PER_PARAMETER = ("params", "param_names", "layouts")


class LearnedRates:
    """Learn a multiplier on the learning rate of each role, layer or number while the optimizer trains.

    It uses the hooks of ``optimizer.step``, so the training loop does not change. Each group stores its multiplier, between
    1/32 and 32, as ``learned_mult``. It scales the learning rate and the weight decay, and schedulers still control ``lr``.
    Groups with several roles are split. A run resumed from ``optimizer.state_dict()`` reproduces the uninterrupted run bit
    for bit.

    Create it after the optimizer, but before a scheduler and before ``load_state_dict``. It keeps one copy of the parameters
    in memory.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        An optimizer from :func:`~neuralop_mup.MuAdam`, ``MuAdamW``, ``MuSGD``, ``MuSOAP`` or
        :func:`~neuralop_mup.follow_plan`.
    hyper_lr : float, default 0.05
        β, the largest change of a multiplier's logarithm per step, above 0 and at most 1. With ``normalize=False``: the
        learning rate of the logarithms, any number above 0.
    by : {"role", "layer", "parameter"}, default "role"
        What shares a multiplier: all parameters of a role, all parameters of a layer, or nothing. With ``"parameter"`` each
        real number of the model has its own multiplier. This needs a further copy of the parameters.
    normalize : bool, default True
        Follow the cosine. False: follow the hypergradient itself, as the sources for layers and parameters do. Its size
        depends on the model and the loss.
    roles : sequence of str, optional
        Roles with a learned rate. Default: all roles. The other roles keep the multipliers of the rule.
    until : int, optional
        Number of steps after which learning stops. Set it to the start of a schedule's decay, because the multipliers would
        otherwise grow to compensate for the decay.

    Attributes
    ----------
    latest : list of dict
        Records (``kind``, ``name``, ``value``) of the last learning step: ``hypergradient`` h and ``cosine`` c per role or
        layer. With ``by="parameter"``: of the whole update, under the name "parameter".

    Raises
    ------
    MupError
        If the optimizer does not follow a plan or already has learned rates, if its model is sharded, if an argument is
        invalid, or if groups must be split but a scheduler already uses them. In ``optimizer.step``, if it is called with a
        closure.
    Diverged
        In ``optimizer.step``, if a hypergradient is not finite. In this case, the step is not taken.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((8,), 1, 1, 16), base={"hidden_channels": 8})
    >>> optimizer = nm.MuAdamW(model, lr=4e-3)
    >>> rates = nm.LearnedRates(optimizer, until=500)
    >>> sorted(rates.mults)
    ['hidden', 'input', 'readout', 'spectral', 'vector']
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        hyper_lr: float = 0.05,
        *,
        by: str = "role",
        normalize: bool = True,
        roles: Collection[str] | None = None,
        until: int | None = None,
    ) -> None:
        if not (is_number(hyper_lr) and hyper_lr > 0 and (hyper_lr <= 1 or not normalize)):
            raise MupError(f"hyper_lr is {hyper_lr!r}; use a number above 0 and at most 1, such as 0.05.")
        if by not in ("role", "layer", "parameter"):
            raise MupError(f"by is {by!r}: {nearest(by, ('role', 'layer', 'parameter'))}")
        if until is not None:
            check_count("until", until, "steps")
        optimizer = unwrap_optimizer(optimizer)
        hooks = getattr(optimizer, LR_HOOKS, None)
        if hooks is None:
            raise MupError(
                f"LearnedRates needs an optimizer that follows a plan, but this {type(optimizer).__name__} does not. Build "
                "it with a function such as neuralop_mup.MuAdamW(model, lr=…), or call neuralop_mup.follow_plan."
            )
        if getattr(optimizer, _LEARNING, False):
            raise MupError("This optimizer already has learned rates. Call close() on the existing LearnedRates first.")
        models = [resolve(former.model) for former in hooks.models]
        if sharded := [type(own.model).__name__ for own in models if is_sharded(own.model)]:
            raise MupError(
                f"The parameters of this {sharded[0]} are sharded, but LearnedRates needs inner products of complete "
                "tensors. Learn the rates on one device or under DistributedDataParallel, then pass them as lr_mult."
            )
        rows = {own.parameters[row.name]: row for own in models for row in own.plan.rows if not row.fixed}
        here = {row.role for row in rows.values()}
        if unknown := [role for role in roles or () if role not in here]:
            raise MupError(f"The model has no role {unknown[0]!r}: {nearest(unknown[0], here)}")
        learned = here if roles is None else roles
        unit = {"role": lambda row: row.role, "layer": lambda row: row.owner, "parameter": lambda row: "parameter"}[by]
        groups = _split(optimizer.param_groups, {p: unit(row) for p, row in rows.items() if row.role in learned})
        if len(groups) != len(optimizer.param_groups) and any("initial_lr" in group for group in optimizer.param_groups):
            # A scheduler stores one number per group, so groups can no longer be split.
            raise MupError(
                f"LearnedRates must split the {len(optimizer.param_groups)} groups of this optimizer into {len(groups)}, "
                "but a scheduler already uses them. Build LearnedRates before the scheduler."
            )
        self.optimizer, self.hyper_lr, self.until = optimizer, hyper_lr, until
        self.by, self.normalize = by, normalize
        self.latest: list[dict[str, Any]] = []
        self._names: dict[torch.Tensor, str] = {p: row.name for p, row in rows.items()}
        self._master = {
            rows[p].role: group.get("lr_mult", 1.0) / group.get("rule_mult", 1.0)
            for group in groups
            for p in group["params"]
            if p in rows
        }
        # If learned by parameter, the logarithms of the multipliers, with real and imaginary parts along the last axis.
        self._logs: dict[torch.Tensor, torch.Tensor] = {}
        self._last: dict[torch.Tensor, torch.Tensor] = {}  # the last update of each parameter
        self._held: dict[torch.Tensor, torch.Tensor] | None = None  # during a step: the parameters before it
        optimizer.param_groups[:] = groups
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
            optimizer.register_state_dict_post_hook(self._save),
            optimizer.register_load_state_dict_pre_hook(self._load),
        ]
        hooks.attach(optimizer)  # attached last, so that an updated multiplier already applies to the current step
        setattr(optimizer, _LEARNING, True)

    @property
    def mults(self) -> dict[str, Any]:
        """Current multiplier of each learned role or layer, relative to the rule.

        Returns
        -------
        dict of str to float
            Multipliers by role or layer, 1 before learning. With ``by="parameter"``: one tensor per parameter, by name, with
            real and imaginary parts along the last axis for complex parameters. It is empty before learning.

        Examples
        --------
        >>> rates.mults
        {'vector': 1.0, 'input': 1.0, 'spectral': 1.0, 'hidden': 1.0, 'readout': 1.0}
        """
        if self.by == "parameter":
            return {self._names[p]: log.exp() for p, log in self._logs.items()}
        learned = [group for group in self.optimizer.param_groups if "learned" in group]
        return {group["learned"]["of"]: group["learned_mult"] for group in learned}

    @property
    def lr_mult(self) -> dict[str, float]:
        """Multipliers by role, including the optimizer's own ``lr_mult``, for use with a larger model.

        Returns
        -------
        dict of str to float
            Multipliers by role, including roles that are not learned.

        Raises
        ------
        MupError
            If rates were learned by layer or parameter, because another model has other layers.

        Examples
        --------
        After training, use the multipliers for a larger model:

        >>> target = nm.parametrize(FNO((8,), 1, 1, 32), base={"hidden_channels": 8})
        >>> optimizer = nm.MuAdamW(target, lr=4e-3, lr_mult=rates.lr_mult)
        """
        if self.by != "role":
            raise MupError(f'Rates learned per {self.by} have no multiplier for each role. Use LearnedRates(…, by="role").')
        return {role: master * self.mults.get(role, 1.0) for role, master in self._master.items()}

    def close(self) -> None:
        """Stop learning. The learned multipliers stay in the groups and still apply, except with ``by="parameter"``.

        Examples
        --------
        >>> rates.close()
        """
        for handle in self._handles:
            handle.remove()
        self._handles, self._last = [], {}
        setattr(self.optimizer, _LEARNING, False)

    def _learning(self) -> dict[str, list[dict[str, Any]]]:
        """Return the groups of each role that is still learning."""
        groups: dict[str, list[dict[str, Any]]] = {}
        for group in self.optimizer.param_groups:
            if "learned" in group and (self.until is None or group["learned"]["steps"] < self.until):
                groups.setdefault(group["learned"]["of"], []).append(group)
        return groups

    @torch.no_grad()
    def _before(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        if any(callable(value) for value in (*args, *kwargs.values())):
            raise MupError(
                "LearnedRates reads the gradient before a step, but a closure computes it during the step. Call backward() "
                "first, then optimizer.step() without a closure."
            )
        if self._held is None:  # otherwise torch called the hook twice, or the previous step raised
            self._learn()
        self._last = {}  # free its memory before copying the parameters
        learning = (p for groups in self._learning().values() for group in groups for p in group["params"])
        self._held = {p: p.detach().clone() for p in dict.fromkeys([*learning, *self._logs]) if p.grad is not None}

    @torch.no_grad()
    def _after(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        if self._held is None:
            return
        for p, log in self._logs.items():
            if p in self._held:  # a step is linear in the learning rate
                _real(p).copy_(torch.lerp(_real(self._held[p]), _real(p), log.exp()))
        self._last = {p: torch.sub(p, before, out=before) for p, before in self._held.items()}
        self._held = None
        for groups in self._learning().values():
            for group in groups:
                group["learned"]["steps"] += 1

    def _learn(self) -> None:
        """Update all multipliers; raise Diverged and change none if a hypergradient is not finite."""
        learning = self._learning()
        products = {role: _products(groups, self._last) for role, groups in learning.items()}
        sums = {role: torch.stack(each).sum(0) for role, each in products.items() if each}
        if not sums:
            return
        device = next(iter(sums.values())).device
        values = torch.stack([total.to(device) for total in sums.values()]).tolist()  # one synchronization per step
        found = dict(zip(sums, values, strict=True))
        if broken := [role for role, numbers in found.items() if not all(map(math.isfinite, numbers))]:
            raise Diverged(
                f"The hypergradient of {broken[0]!r} is not finite, so this step was not taken. Lower the learning rate, or "
                "clip gradients."
            )
        self.latest = []
        for role, (h, gradient_squares, update_squares) in found.items():
            squared = gradient_squares * update_squares
            cosine = h / math.sqrt(squared) if squared > 0 else 0.0  # zero norms: zero learning rate or no gradient
            log = math.log(learning[role][0]["learned_mult"]) - self.hyper_lr * (cosine if self.normalize else h)
            for group in learning[role]:
                if self.by == "parameter":
                    self._learn_each(group["params"])
                else:
                    group["learned_mult"] = math.exp(min(max(log, -_LARGEST_LOG), _LARGEST_LOG))
            self.latest.append({"kind": "hypergradient", "name": role, "value": h})
            self.latest.append({"kind": "cosine", "name": role, "value": cosine})

    def _learn_each(self, params: Iterable[torch.Tensor]) -> None:
        """Update the multiplier of each number. Its hypergradient is gradient times update."""
        for p in params:
            if p in self._last and p.grad is not None:
                h = _real(p.grad) * _real(self._last[p])
                log = self._logs.setdefault(p, torch.zeros_like(h))
                log.sub_(h.sign() if self.normalize else h, alpha=self.hyper_lr).clamp_(-_LARGEST_LOG, _LARGEST_LOG)

    def _save(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        state["learned_rates"] = {
            key: {i: values[p].clone() for i, p in enumerate(_parameters(optimizer)) if p in values}
            for key, values in (("last", self._last), ("logs", self._logs))
        }

    def _load(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        ours, theirs = (
            [group.get("learned", {}).get("of") for group in groups]
            for groups in (optimizer.param_groups, state.get("param_groups", []))
        )
        if "learned_rates" not in state or ours != theirs:
            raise MupError(
                "This optimizer state was saved without learned rates, or with learned rates for other roles. Build "
                "LearnedRates as in the saved run, or load the state first and build LearnedRates afterwards."
            )
        parameters = _parameters(optimizer)
        self._last, self._logs = (
            {parameters[i]: u.to(parameters[i].device, copy=True) for i, u in state["learned_rates"].get(key, {}).items()}
            for key in ("last", "logs")
        )
        self._held = None


def _products(groups: Sequence[Mapping[str, Any]], last: Mapping[torch.Tensor, torch.Tensor]) -> list[torch.Tensor]:
    """Return ⟨g, Δ⟩, ‖g‖² and ‖Δ‖² of each parameter with a gradient and an update."""
    params = [p for group in groups for p in group["params"] if p in last and p.grad is not None]
    pairs = ((_flat(p.grad), _flat(last[p])) for p in params)
    return [torch.stack([g.dot(update), g.dot(g), update.dot(update)]).double() for g, update in pairs]


def _real(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def _flat(x: torch.Tensor) -> torch.Tensor:
    return _real(x).reshape(-1).to(torch.promote_types(x.dtype.to_real(), torch.float32))


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _split(groups: Iterable[Mapping[str, Any]], role_of: Mapping[torch.Tensor, str]) -> list[dict[str, Any]]:
    """Split each group by the roles with a learned rate. Parameters with other roles form a separate group."""
    parts: list[dict[str, Any]] = []
    for group in groups:
        found = [role_of.get(p) for p in group["params"]]
        for role in dict.fromkeys(found):
            kept = [i for i, other in enumerate(found) if other == role]
            part = {
                key: [value[i] for i in kept] if key in PER_PARAMETER and value is not None else value
                for key, value in group.items()
                if key != "learned"
            }
            if len(kept) < len(found):
                # In the group's name, replace the joined roles with this role ("aux input+vector" becomes "aux input").
                words = group.get("name", "+").split()
                part["name"] = " ".join(role or "rest" if "+" in word else word for word in words)
            if role is not None:
                part.setdefault("learned_mult", 1.0)
                part["learned"] = {"steps": 0, **group.get("learned", {}), "of": role}
            parts.append(part)
    number_equal_names([part for part in parts if "name" in part])
    return parts
