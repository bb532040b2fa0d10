"""The settings of a training run, with their defaults and checks, and the optimizers that a run can select."""

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

_MULTIPLIERS = ("lr_mult", "init_mult")


@dataclass(frozen=True)
class Choice:
    """An optimizer that a run can select by name.

    Attributes
    ----------
    make : callable
        ``make(model, lr=…, weight_decay=…, lr_mult=…, **arguments)`` returns the optimizer. A user-defined function is
        called as ``make(model, lr, steps)``.
    betas : bool
        Whether the optimizer has betas. The second one is set by ``beta2``.
    lr : float
        Default learning rate.
    weight_decay : float
        Default weight decay.
    lr_from_steps : bool
        Whether the default learning rate depends on the number of steps (docs/evidence/learning_rate.md).
    init_mult : mapping
        Default initialization multipliers by role, which were the best for this optimizer (docs/evidence/optimizers.md).
    arguments : frozenset of str
        Additional arguments, which a run passes under the name of the optimizer:
        ``{"optimizer": "soap", "soap": {"mode_stride": 2}}``. An optimizer with such arguments also has ``adamw_lr``, the
        learning rate for parameters other than kernels and hidden matrices.
    user_defined : bool
        Whether the optimizer is user-defined. In this case, no other setting applies to it.
    """

    make: Callable[..., torch.optim.Optimizer]
    betas: bool = True
    lr: float = 1e-3
    weight_decay: float = 0.0
    lr_from_steps: bool = False
    init_mult: Mapping[str, float] = field(default_factory=dict)
    arguments: frozenset[str] = frozenset()
    user_defined: bool = False

    def default_lr(self, steps: int) -> float:
        """Return the default learning rate for a number of steps, rounded to three digits."""
        return float(f"{musoap.default_lr(steps, self.lr) if self.lr_from_steps else self.lr:.3g}")

    def search_lrs(self, steps: int) -> list[float]:
        """Return the learning rates to search: five in factors of 2 around the formula's value, or those for Adam."""
        if not self.lr_from_steps:
            return log2_grid(1e-3, 6.4e-2)
        center = musoap.default_lr(steps, self.lr)
        rates = [float(f"{min(1.0, center * 2**i):.3g}") for i in range(-2, 3)]
        return list(dict.fromkeys(rates))  # no rate exceeds 1


#: Maps a name to an optimizer. The learning rate of soap is an update size, so it is not comparable with the others.
OPTIMIZERS: dict[str, Choice] = {
    "adam": Choice(MuAdam),
    "adamw": Choice(MuAdamW),
    "neuralop-adamw": Choice(partial(MuAdamW, impl=AdamW)),
    "sgd": Choice(partial(MuSGD, momentum=0.9), betas=False),
    "soap": Choice(
        musoap.MuSOAP,
        lr=musoap.LR,
        weight_decay=musoap.WEIGHT_DECAY,
        lr_from_steps=True,
        init_mult=SMALL_KERNELS,
        arguments=frozenset({"momentum", "beta2", "period", "mode_stride", "refresh", "base_depth", "eps"}),
    ),
}
#: Maps the names above to the classes of this package.
_CLASSES: dict[str, Any] = {"adam": MuAdam, "adamw": MuAdamW, "sgd": MuSGD, "soap": musoap.MuSOAP}
CLASS_NAMES = {name: own.__name__ for name, own in _CLASSES.items()}


def optimizer_of(optimizer: Any) -> tuple[str, dict[str, Choice]]:
    """Return the name of an optimizer, and all optimizers that a run can then select.

    Parameters
    ----------
    optimizer : str, class or callable
        A key of :data:`OPTIMIZERS`, a class of this package or its name, a user-defined function ``(model, lr, steps)``, or
        the import path of such a function (``"module.function"``).

    Raises
    ------
    MupError
        If the name is unknown, or if a class is not from this package, since the arguments of such classes are unknown.
    """
    with suppress(ImportError, AttributeError, ValueError):
        optimizer = pkgutil.resolve_name(optimizer) if isinstance(optimizer, str) and "." in optimizer else optimizer
    lower = optimizer.lower() if isinstance(optimizer, str) else ""
    for name in OPTIMIZERS:
        if optimizer is _CLASSES.get(name, name) or lower in (name, CLASS_NAMES.get(name, name).lower()):
            return name, OPTIMIZERS
    if isinstance(optimizer, str):
        raise MupError(f"Unknown optimizer {optimizer!r}: {nearest(optimizer, [*OPTIMIZERS, *CLASS_NAMES.values()])}")
    name = getattr(optimizer, "__name__", type(optimizer).__name__)
    if isinstance(optimizer, type) or not callable(optimizer):
        raise MupError(
            f"The optimizer {name} cannot be built automatically for a model in μP. Pass a function that builds it, such as "
            f"lambda model, lr, steps: {name}(nm.param_groups(model, lr), lr=lr), or one of {', '.join(OPTIMIZERS)}."
        )
    return name, {**OPTIMIZERS, name: Choice(optimizer, betas=False, user_defined=True)}


def optimizer_arguments(s: "Settings") -> dict[str, Any]:
    """Return all arguments of a run's optimizer, including defaults, or an empty dict if the optimizer is user-defined."""
    if s.choice.user_defined:
        return {}
    parameters = inspect.signature(s.choice.make).parameters.values()
    return {**{p.name: p.default for p in parameters if p.default is not p.empty}, **s.arguments}


def available_device(device: str) -> str:
    """Return the name of a device for torch. ``"auto"`` selects a GPU, or the CPU if there is no GPU.

    Raises
    ------
    MupError
        If the device is unknown or not available.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"(cpu|cuda|mps|xpu)(:\d+)?", str(device)):
        raise MupError(f"device={device!r} must be auto or a torch device such as cpu or cuda:0.")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise MupError(f"device={device!r} requires CUDA, which is not available on this machine. Use cpu or auto.")
    return device


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of one training run.

    Attributes
    ----------
    model : dict
        Arguments of the function that builds the model.
    base : dict, optional
        Arguments of the same function for the base model. None selects the reference size.
    rule : str
        μP rule.
    lr : float, optional
        Learning rate of the base model. Default: the default of the optimizer.
    seed : int
        Seed for the weights and for the order of the samples.
    epochs : int
        Number of epochs.
    batch_size : int
        Number of samples in a batch.
    optimizer : str
        A key of ``optimizers``.
    aux_lr : float, optional
        Learning rate for parameters other than kernels and hidden matrices, if the optimizer has this argument.
    arguments : dict
        Additional arguments of the optimizer. In a configuration, they are listed under the name of the optimizer, such as
        ``soap``.
    weight_decay : float, optional
        Weight decay. Default: the default of the optimizer.
    beta2 : float
        Second beta of Adam-like optimizers.
    schedule : str
        Schedule of the learning rate over epochs: ``"cosine"`` (to zero), ``"constant"``, ``"halve:50"`` (halved every 50
        epochs) or ``"halve:100,150,200"`` (halved after these epochs).
    clip_spectral : float, optional
        Value at which the entries of the gradients of spectral kernels are clipped.
    device : str
        A torch device, or ``"auto"``.
    lr_mult : dict
        Learning-rate multipliers by role. A configuration can contain them as ``lr_mult.spectral``.
    init_mult : dict
        Initialization multipliers by role, in the same form.
    optimizers : dict
        Maps a name to a :class:`Choice`. These are the optimizers that a configuration can select.
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
        """The description of the optimizer."""
        return self.optimizers[self.optimizer]

    @classmethod
    def of(cls, config: Mapping[str, Any], optimizers: Mapping[str, Choice] = OPTIMIZERS) -> "Settings":
        """Return the settings of a flat configuration.

        Raises
        ------
        MupError
            If a key is unknown or a value is invalid.
        """
        known = {f.name for f in fields(cls)} - {"optimizers"}
        values = {"optimizer": cls.optimizer, **{key: value for key, value in config.items() if key in known}}
        for key in [key for key in config if key not in known]:
            value, (group, _, role) = config[key], key.partition(".")
            if role and group in _MULTIPLIERS:
                values[group] = {**values.get(group, {}), role: value}
                continue
            if key not in optimizers or not optimizers[key].arguments:
                raise MupError(f"Unknown setting {key!r}: {nearest(key, known)}")
            if value and values["optimizer"] != key:
                raise MupError(
                    f"{key}={value} sets arguments of the optimizer {key}, but the run uses the optimizer "
                    f"{values['optimizer']!r}. Omit {key}, or use optimizer={key!r}."
                )
            # "period" is the name of mode_stride in release 0.3.
            values["arguments"] = {"mode_stride" if k == "period" else k: v for k, v in value.items()}
        return cls(**values, optimizers=optimizers)

    def __post_init__(self) -> None:
        if self.optimizer not in self.optimizers:
            raise MupError(f"Unknown optimizer {self.optimizer!r}: {nearest(str(self.optimizer), self.optimizers)}")
        choice = self.choice
        for name in ("lr", "weight_decay"):
            value = getattr(choice if getattr(self, name) is None else self, name)
            check_number(name, value)
            object.__setattr__(self, name, float(value))  # 1 and 1.0 give the same training, so they must be the same run
        object.__setattr__(self, "device", available_device(self.device))
        check_decay("beta2", self.beta2)
        check_count("epochs", self.epochs)
        check_count("batch_size", self.batch_size)
        check_count("seed", self.seed, least=0)
        for name in ("aux_lr", "clip_spectral"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        if choice.user_defined and (self.weight_decay or self.lr_mult or self.beta2 != type(self).beta2):
            raise MupError(
                f"weight_decay, beta2 and lr_mult have no effect on your optimizer {self.optimizer}. Set them in the "
                "function that builds it."
            )
        if self.aux_lr is not None and not choice.arguments:
            raise MupError(
                f"aux_lr={self.aux_lr} has no effect on the optimizer {self.optimizer!r}. Omit it, or use the optimizer "
                "soap."
            )
        if wrong := sorted(set(self.arguments) - choice.arguments):
            raise MupError(
                f"The optimizer {self.optimizer} has no argument {wrong[0]!r}: {nearest(wrong[0], choice.arguments)}"
            )
        check_multipliers(self.init_mult, "init_mult", OF_INIT)
        halving_epochs(self.schedule, self.epochs)


def build_optimizer(model: nn.Module, s: Settings, steps: int = 1) -> torch.optim.Optimizer:
    """Return the optimizer of a run.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model.
    s : Settings
        Settings of the run.
    steps : int
        Number of optimizer steps, which is passed to a user-defined optimizer.

    Raises
    ------
    MupError
        If a user-defined function does not return an optimizer.
    """
    choice = s.choice
    if choice.user_defined:
        optimizer = choice.make(model, s.lr, steps)
    else:
        arguments = {"lr": s.lr, "weight_decay": s.weight_decay, "lr_mult": s.lr_mult, **s.arguments}
        if choice.betas:
            arguments["betas"] = (0.9, s.beta2)
        if s.aux_lr is not None:
            arguments["adamw_lr"] = s.aux_lr
        optimizer = choice.make(model, **arguments)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise MupError(f"The function {s.optimizer} returned {optimizer!r}, but it must return a torch.optim.Optimizer.")
    if s.clip_spectral is not None:
        optimizer.register_step_pre_hook(lambda *_: clip_spectral_grad_value_(model, s.clip_spectral))
    return optimizer


def halving_epochs(schedule: str, epochs: int) -> list[int]:
    """Return the epochs after which the learning rate is halved.

    Raises
    ------
    MupError
        If the schedule is unknown.
    """
    if schedule in ("cosine", "constant"):
        return []
    kind, _, numbers = str(schedule).partition(":")
    halved = [int(number) if number.isdecimal() else 0 for number in numbers.split(",")]
    if kind != "halve" or halved[0] < 1 or any(late <= early for early, late in pairwise(halved)):
        raise MupError(
            f"Unknown schedule {schedule!r}. Use cosine, constant, halve:50 (the learning rate is halved every 50 epochs) "
            "or halve:100,150,200 (it is halved after these epochs)."
        )
    return halved if len(halved) > 1 else list(range(halved[0], epochs, halved[0]))


def build_scheduler(optimizer: torch.optim.Optimizer, s: Settings) -> torch.optim.lr_scheduler.LRScheduler:
    """Return the learning-rate scheduler, which takes one step after each epoch."""
    if s.schedule == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=s.epochs)
    milestones = halving_epochs(s.schedule, s.epochs)
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=milestones, gamma=0.5)
