"""The settings of one training run: typed, completed once, and what is wrong with them said once."""

import inspect
import pkgutil
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from neuralop.training import AdamW
from torch import nn

from neuralop_mup.core.rules import DEFAULT_RULE, OF_INIT, SMALL_KERNELS, check_multipliers
from neuralop_mup.errors import MupError, nearest
from neuralop_mup.lab.study import log2_grid
from neuralop_mup.optim.clip import clip_spectral_grad_value_
from neuralop_mup.optim.groups import MuAdam, MuAdamW, MuSGD
from neuralop_mup.optim.musoap import optimizer as musoap
from neuralop_mup.validation import check_count, check_decay, check_number, check_positive

_MASTERS = ("lr_mult", "init_mult")
#: Ends of a search under Adam, which has no formula for its learning rate.
ADAM_LRS = (1e-3, 6.4e-2)


@dataclass(frozen=True)
class Choice:
    """An optimizer that a run may name.

    Attributes
    ----------
    make : callable
        ``make(model, lr=…, weight_decay=…, lr_mult=…)``, and whatever follows.
    betas : bool
        Whether it has betas, the second of which is the run's.
    lr : float
        Learning rate of a run that is given none.
    weight_decay : float
        That of a run that is given none.
    by_steps : bool
        Whether ``lr`` goes by the law for the learning rate (docs/evidence/learning_rate.md), around which a search is a
        check.
    aux_lr : float, optional
        Default of the learning rate of what is no map between widths; None: it has none.
    init_mult : dict
        How large parameters start in μP, by role, where nobody says it: what was measured to be best with it
        (docs/evidence/optimizers.md).
    arguments : frozenset of str
        Further arguments, which a run gives under the optimizer's name: ``{"optimizer": "soap", "soap": {"mode_stride":
        2}}``.
    is_own : bool
        Whether it is one of the user's: then ``make(model, lr, steps)``, and all else is its own business.
    """

    make: Callable[..., torch.optim.Optimizer]
    betas: bool = True
    lr: float = 1e-3
    weight_decay: float = 0.0
    by_steps: bool = False
    aux_lr: float | None = None
    init_mult: Mapping[str, float] = field(default_factory=dict)
    arguments: frozenset[str] = frozenset()
    is_own: bool = False

    def usual(self, steps: int) -> float:
        """The learning rate of a run of so many steps for which nothing is searched: by the law, or the default."""
        return musoap.default_lr(steps, self.lr) if self.by_steps else self.lr

    def lrs(self, steps: int) -> list[float]:
        """Learning rates that a search of runs of so many steps tries: five in factors of 2 around the law's, or Adam's."""
        if not self.by_steps:
            return log2_grid(*ADAM_LRS)
        usual = self.usual(steps)
        return [float(f"{min(1.0, usual * 2**i):.3g}") for i in (-2, -1, 0, 1, 2) if usual * 2 ** (i - 1) < 1]


#: Name → optimizer. The learning rate of soap is of another kind: the size of an update.
OPTIMIZERS: dict[str, Choice] = {
    "adam": Choice(MuAdam),
    "adamw": Choice(MuAdamW),
    "neuralop-adamw": Choice(partial(MuAdamW, impl=AdamW)),
    "sgd": Choice(partial(MuSGD, momentum=0.9), betas=False),
    "soap": Choice(
        musoap.MuSOAP,
        lr=musoap.LR,
        weight_decay=musoap.WEIGHT_DECAY,
        by_steps=True,
        aux_lr=musoap.ADAMW_LR,
        init_mult=SMALL_KERNELS,
        arguments=frozenset({"momentum", "beta2", "period", "mode_stride", "refresh", "base_depth", "eps"}),
    ),
}


#: The names that they have in Python.
_CLASSES = {"MuAdam": "adam", "MuAdamW": "adamw", "MuSGD": "sgd", "MuSOAP": "soap"}


def optimizer_of(given: Any) -> tuple[str, dict[str, Choice]]:
    """What runs call an optimizer, and the optimizers that they may name.

    Parameters
    ----------
    given : str, class or callable
        A key of :data:`OPTIMIZERS`, a class of this package or its name; or the user's own, or where it is found
        (``"module.function"``): a function ``(model, lr, steps)``, or what has such a function as ``from_plan``.

    Raises
    ------
    MupError
        If there is no such optimizer, or if it is a class that says nothing of how a plan makes it.
    """
    known = {**{key.lower(): key for key in OPTIMIZERS}, **{name.lower(): key for name, key in _CLASSES.items()}}
    with suppress(ImportError, AttributeError, ValueError):
        given = pkgutil.resolve_name(given) if isinstance(given, str) and "." in given else given
    name = given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
    if isinstance(given, str) or (name in _CLASSES and given.__module__.startswith("neuralop_mup.")):
        if name.lower() not in known:
            raise MupError(f"There is no optimizer {name!r}: {nearest(name, [*OPTIMIZERS, *_CLASSES])}")
        return known[name.lower()], OPTIMIZERS
    make = getattr(given, "from_plan", given)
    if isinstance(make, type) or not callable(make):
        raise MupError(
            f"The optimizer {name} says nothing of how it is made for a model in μP: give a function that makes it, such as "
            f"lambda model, lr, steps: {name}(nm.param_groups(model, lr), lr=lr), or one of {', '.join(_CLASSES)}."
        )
    return name, {**OPTIMIZERS, name: Choice(make, betas=False, is_own=True)}


def optimizer_arguments(s: "Settings") -> dict[str, Any]:
    """Return all arguments of a run's optimizer, including defaults; none for an optimizer of the user."""
    if s.choice.is_own:
        return {}
    parameters = inspect.signature(s.choice.make).parameters.values()
    return {**{p.name: p.default for p in parameters if p.default is not p.empty}, **s.arguments}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides one training run.

    Attributes
    ----------
    model, base : dict
        Arguments of the function that builds the model: of this run's, and of the base's. A base of None is the reference
        size.
    rule : str
    lr : float, optional
        At the base; the optimizer's own default where it is None.
    seed, epochs, batch_size : int
    optimizer : str
        A key of ``optimizers``.
    aux_lr : float, optional
        Learning rate of what is no map between widths, for optimizers that have one.
    arguments : dict
        Further arguments of the optimizer; in a configuration they stand under its name, such as ``soap``.
    weight_decay : float, optional
        The optimizer's own default where it is None.
    beta2 : float
    schedule : str
        The learning rate epoch by epoch: ``"cosine"`` (to zero), ``"constant"``, ``"halve:50"`` (every 50 epochs) or
        ``"halve:100,150,200"`` (after these epochs).
    clip_spectral : float, optional
        Bound of each entry of the spectral kernels' gradients.
    device : str
        torch's name of it, or ``"auto"``.
    lr_mult, init_mult : dict
        Master multipliers by role; a run may give ``lr_mult.spectral`` and the like.
    optimizers : dict
        Name → :class:`Choice`; what a run's configuration may name.
    """

    model: Mapping[str, Any] = field(default_factory=dict)
    base: Mapping[str, Any] | None = field(default_factory=dict)
    rule: str = DEFAULT_RULE
    lr: float | None = None
    seed: int = 0
    epochs: int = 8
    batch_size: int = 20
    optimizer: str = "adam"
    aux_lr: float | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    weight_decay: float | None = None
    beta2: float = 0.999
    schedule: str = "cosine"
    clip_spectral: float | None = None
    device: str = "cpu"
    lr_mult: Mapping[str, float] = field(default_factory=dict)
    init_mult: Mapping[str, float] = field(default_factory=dict)
    optimizers: Mapping[str, Choice] = field(default_factory=lambda: OPTIMIZERS, repr=False, compare=False)

    @property
    def choice(self) -> Choice:
        """The optimizer itself."""
        return self.optimizers[self.optimizer]

    @classmethod
    def of(cls, config: Mapping[str, Any], optimizers: Mapping[str, Choice] = OPTIMIZERS) -> "Settings":
        """The settings that a flat configuration means, checked.

        Raises
        ------
        MupError
            For a key that no run has, or a value that cannot work.
        """
        known = {f.name for f in fields(cls)} - {"optimizers"}
        values: dict[str, Any] = {"optimizers": optimizers}
        for key, value in config.items():
            group, _, role = key.partition(".")
            if role and group in _MASTERS:
                values[group] = {**values.get(group, {}), role: value}
            elif key in optimizers and optimizers[key].arguments:
                if value and config.get("optimizer", "adam") != key:
                    raise MupError(
                        f"{key} = {value} with the optimizer {config.get('optimizer', 'adam')!r} cannot be used: it belongs "
                        f"to the optimizer {key}."
                    )
                values["arguments"] = {"mode_stride" if k == "period" else k: v for k, v in value.items()}  # of release 0.3
            elif key in known:
                values[key] = {**value, **values.get(key, {})} if key in _MASTERS else value
            else:
                raise MupError(f"A run has no setting {key!r}: {nearest(key, known)}")
        return cls(**values)

    def __post_init__(self) -> None:
        if self.optimizer not in self.optimizers:
            raise MupError(f"There is no optimizer {self.optimizer!r}: {nearest(str(self.optimizer), self.optimizers)}")
        choice = self.choice
        for name in ("lr", "weight_decay"):
            value = getattr(choice if getattr(self, name) is None else self, name)
            check_number(name, value)
            object.__setattr__(self, name, float(value))  # 1 and 1.0 train in the same way, so they are one run
        if self.device == "auto":
            object.__setattr__(self, "device", "cuda" if torch.cuda.is_available() else "cpu")
        check_decay("beta2", self.beta2)
        for name, least in (("epochs", 1), ("batch_size", 1), ("seed", 0)):
            check_count(name, getattr(self, name), least=least)
        for name in ("aux_lr", "clip_spectral"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        if choice.is_own and (self.weight_decay or self.lr_mult or self.beta2 != type(self).beta2):
            raise MupError(
                f"weight_decay, beta2 and lr_mult are arguments of this package's optimizers, and {self.optimizer} is your "
                "own: give them where it is made."
            )
        if self.aux_lr is not None and choice.aux_lr is None:
            raise MupError(
                f"aux_lr is {self.aux_lr}, but the optimizer is {self.optimizer!r}, which has none: it is the learning rate "
                "for what is no map between widths. Choose soap, which has one, or leave aux_lr out."
            )
        if not set(self.arguments) <= choice.arguments:
            wrong = next(name for name in self.arguments if name not in choice.arguments)
            raise MupError(f"The optimizer {self.optimizer} has no argument {wrong!r}; {nearest(wrong, choice.arguments)}")
        check_multipliers(self.init_mult, "init_mult", OF_INIT)
        halvings(self.schedule)
        if not re.fullmatch(r"(cpu|cuda|mps|xpu)(:\d+)?", str(self.device)):
            raise MupError(f"device must be torch's name of one, such as cpu or cuda:0, or auto; it is {self.device!r}.")
        if str(self.device).startswith("cuda") and not torch.cuda.is_available():
            raise MupError(f"device is {self.device!r}, but torch finds no CUDA device here: use cpu or auto.")


def build_optimizer(model: nn.Module, s: Settings, steps: int = 1) -> torch.optim.Optimizer:
    """The optimizer that a run asks for.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model.
    s : Settings
        Of the run.
    steps : int
        Of the run, for an optimizer of the user's own.
    """
    choice = s.choice
    given = {"lr": s.lr, "weight_decay": s.weight_decay, "lr_mult": dict(s.lr_mult), **s.arguments}
    given |= {"betas": (0.9, s.beta2)} if choice.betas else {}
    if choice.aux_lr is not None:
        given["adamw_lr"] = choice.aux_lr if s.aux_lr is None else s.aux_lr
    optimizer = choice.make(model, s.lr, steps) if choice.is_own else choice.make(model, **given)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise MupError(f"The optimizer {s.optimizer} makes {optimizer!r}, and must make a torch.optim.Optimizer.")
    if s.clip_spectral is not None:
        optimizer.register_step_pre_hook(lambda *_: clip_spectral_grad_value_(model, s.clip_spectral))
    return optimizer


def halvings(schedule: str) -> list[int]:
    """The numbers of ``halve:…``, in epochs: one is a period, several are epochs; none for the other schedules."""
    if schedule in ("cosine", "constant"):
        return []
    kind, _, numbers = str(schedule).partition(":")
    epochs = [int(number) if number.isdecimal() else 0 for number in numbers.split(",")]
    if kind != "halve" or epochs[0] < 1 or any(late <= early for early, late in pairwise(epochs)):
        raise MupError(
            f"There is no schedule {schedule!r}; expected cosine, constant, halve:50 (the learning rate halves every "
            "50 epochs) or halve:100,150,200 (it halves after these epochs, in ascending order)."
        )
    return epochs


def build_scheduler(optimizer: torch.optim.Optimizer, s: Settings) -> torch.optim.lr_scheduler.LRScheduler:
    """The schedule of the learning rate, to be stepped after each epoch."""
    if s.schedule == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=s.epochs)
    epochs = halvings(s.schedule)  # none: the learning rate stays
    epochs = range(*epochs, s.epochs, *epochs) if len(epochs) == 1 else epochs
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=epochs, gamma=0.5)
