"""One training run: a flat configuration in, a record out, through neuralop's ``Trainer``."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from neuralop.losses import WeightedSumLoss
from neuralop.models import FNO
from neuralop.training import AdamW as NeuralopAdamW
from neuralop.training import Trainer
from torch import nn

from neuralop_mup.core.classify import check_grid
from neuralop_mup.core.parametrize import parametrize
from neuralop_mup.errors import MupError, nearest
from neuralop_mup.optim.clip import clip_spectral_grad_value_
from neuralop_mup.optim.muon import MuMuon
from neuralop_mup.optim.muon.optimizer import LR as MUON_LR
from neuralop_mup.optim.optimizers import MuAdam, MuAdamW, MuSGD
from neuralop_mup.problems import Problem, get_problem
from neuralop_mup.resume import RunState

__all__ = [
    "DEFAULTS",
    "OPTIMIZERS",
    "build_model",
    "build_optimizer",
    "default_lr",
    "estimate_flops",
    "train_run",
    "training_loss",
]

OPTIMIZERS = ("adam", "adamw", "neuralop-adamw", "sgd", "muon")

# Every key that a run understands, with its default; hyperparameters of the search are among them.
DEFAULTS: dict[str, Any] = {
    "problem": "burgers",
    "problem_args": {},
    "model": {},
    "base": {},
    "rule": "log-modes",
    "lr": 1e-3,  # muon's is another: default_lr
    "seed": 0,
    "epochs": 8,
    "batch_size": 20,
    "optimizer": "adam",
    "aux_lr": None,  # muon's, for what is no map between widths; the others have none
    "muon": {},  # further arguments of MuMuon
    "weight_decay": 0.0,
    "beta2": 0.999,
    "schedule": "cosine",
    "clip_spectral": None,
    "device": "cpu",
}
_MASTERS = ("lr_mult", "init_mult")
_MUON = {"momentum", "nesterov", "period", "damping", "base_depth", "eps"}


def default_lr(optimizer: str) -> float:
    """Learning rate of a run that is given none; muon's is a size of updates of maps."""
    return MUON_LR if optimizer == "muon" else DEFAULTS["lr"]


def _complete(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in defaults; gather ``lr_mult.spectral`` and the like into dicts; refuse unknown keys."""
    full = {**DEFAULTS, "lr_mult": {}, "init_mult": {}}
    for key, value in config.items():
        group, _, role = key.partition(".")
        if role and group in _MASTERS:
            full[group] = {**full[group], role: value}
        elif key in full:
            full[key] = value
        else:
            raise MupError(f"A run has no setting {key!r}: {nearest(key, [*DEFAULTS, *_MASTERS])}")
    if full["optimizer"] not in OPTIMIZERS:
        raise MupError(f"There is no optimizer {full['optimizer']!r}: {nearest(str(full['optimizer']), OPTIMIZERS)}")
    if "lr" not in config:
        full["lr"] = default_lr(full["optimizer"])
    if full["aux_lr"] is not None and full["optimizer"] != "muon":
        raise MupError(
            f"aux_lr is {full['aux_lr']}, but the optimizer is {full['optimizer']!r}, which has none: it is muon's learning "
            "rate for what is no map between widths. Choose the optimizer muon, or leave aux_lr out."
        )
    if full["muon"] and (full["optimizer"] != "muon" or not set(full["muon"]) <= _MUON):
        raise MupError(
            f"muon = {full['muon']} with the optimizer {full['optimizer']!r} cannot be used: it holds "
            f"{', '.join(sorted(_MUON))}, and belongs to the optimizer muon."
        )
    _halvings(full["schedule"])
    if full["device"] == "auto":
        full["device"] = "cuda" if torch.cuda.is_available() else "cpu"
    elif str(full["device"]).startswith("cuda") and not torch.cuda.is_available():
        raise MupError(f"device is {full['device']!r}, but torch finds no CUDA device here: use cpu or auto.")
    return full


def build_model(problem: Problem, model: Mapping[str, Any], base: Mapping[str, Any], rule: str, init_mult=None) -> FNO:
    """A parametrized FNO with the problem's channels.

    Parameters
    ----------
    problem : Problem
        Gives ``in_channels``, ``out_channels`` and the grid.
    model, base : mapping
        FNO's constructor arguments, and the overrides of them that make the base.
    rule : str
        See :func:`neuralop_mup.parametrize`.
    init_mult : mapping, optional
        Master multipliers of init by role.

    Raises
    ------
    MupError
        If the constructor refuses the arguments, the grid has too few points for ``n_modes``, or the base does not fit.
    """
    kwargs = {"in_channels": problem.in_channels, "out_channels": problem.out_channels, **model}
    n_modes = kwargs.get("n_modes")
    if not isinstance(n_modes, (tuple, list)) or len(n_modes) != problem.n_dim:
        raise MupError(
            f"n_modes = {n_modes!r}, but {problem.name} has {problem.n_dim} axes: give one number of modes an axis."
        )
    try:
        fno = FNO(**kwargs)
    except Exception as error:  # the constructor's reason is what the user needs
        raise MupError(f"FNO cannot be built from {kwargs}: {type(error).__name__}: {error}") from error
    check_grid(fno, problem.grid_shape)
    on_meta = next(fno.parameters()).is_meta  # nothing to rescale: only the plan is wanted
    return parametrize(fno, base=base, rule=rule, init_mult=init_mult, init=not on_meta)


class _Trainer(Trainer):
    """neuralop's, which stops when the loss is no number any more and keeps its state between epochs."""

    run: RunState | None = None
    spent = 0.0  # seconds of this run before it was resumed

    def start(self) -> None:
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        return self.spent + time.perf_counter() - self._began

    def on_epoch_start(self, epoch: int) -> None:
        super().on_epoch_start(epoch)
        if self.run is not None:
            self.run.save_if_due(epoch, self.seconds)

    def train_one_batch(self, idx: int, sample: dict, training_loss: Any) -> torch.Tensor:
        loss = super().train_one_batch(idx, sample, training_loss)
        if not torch.isfinite(loss):
            if self.run is not None:
                self.run.remove()
            lr = max(group["lr"] for group in self.optimizer.param_groups)
            raise MupError(
                f"Training diverged: the loss is {loss.item()} at step {idx + 1} of epoch {self.epoch + 1}, where the "
                f"largest learning rate is {lr:.3g}: lower lr."
            )
        return loss


def training_loss(problem: Problem) -> Callable[..., torch.Tensor]:
    """``loss(y_pred, **sample)`` that training minimises: the problem's losses, weighted and added."""
    weights, terms = zip(*problem.losses().values(), strict=True)
    return WeightedSumLoss(terms, weights)


def train_run(config: Mapping[str, Any], checkpoints: str | os.PathLike | None = None) -> dict[str, float]:
    """Train one FNO on one problem and report its errors.

    Parameters
    ----------
    config : mapping
        Keys of :data:`DEFAULTS`, and ``lr_mult.ROLE`` and ``init_mult.ROLE``. ``model`` holds FNO's constructor
        arguments, ``base`` the overrides that make the base model. ``schedule`` moves the learning rate epoch by
        epoch: ``"cosine"`` (to zero), ``"constant"``, ``"halve:50"`` (every 50 epochs) or ``"halve:100,150,200"``
        (after these epochs). ``device`` is torch's name of it, or ``"auto"``.
    checkpoints : path, optional
        Folder in which the run keeps its state, every five minutes at most. The same configuration goes on from there
        after a kill, bit for bit on a CPU; the file goes when the run is done or diverges.

    Returns
    -------
    dict
        ``loss``: relative L2 error on the validation set, by which hyperparameters are chosen; ``test_loss``: the same
        on the held-out test set; ``train_loss``: mean training loss of the last epoch (of normalised fields, unless the
        problem trains on an equation); ``seconds``; ``n_params`` (complex numbers count as two). A problem with further
        losses adds them by name, as ``equation_loss`` and ``test_equation_loss``.

    Raises
    ------
    MupError
        If the configuration has an unknown key or value, the training loss is not finite, or a checkpoint is damaged.
    """
    c = _complete(config)
    problem = get_problem(c["problem"], **c["problem_args"])
    data = problem.load()
    torch.manual_seed(c["seed"])
    model = build_model(problem, c["model"], c["base"], c["rule"], c["init_mult"]).to(c["device"])
    optimizer = build_optimizer(model, config)
    scheduler = _scheduler(optimizer, c)
    train_loader, eval_loaders = data.loaders(batch_size=c["batch_size"], seed=c["seed"])
    losses = problem.losses()
    trainer = _Trainer(model=model, n_epochs=c["epochs"], data_processor=problem.processor(data), device=c["device"])
    if checkpoints is not None:
        trainer.run = RunState(checkpoints, c)
        trainer.run.attach(train_loader, model=model, optimizer=optimizer, scheduler=scheduler)
        trainer.start_epoch, trainer.spent = trainer.run.restore()
    trainer.start()
    with warnings.catch_warnings():
        # neuralop's Trainer hands the whole batch to the model and to the loss, and both warn about what they ignore.
        warnings.filterwarnings("ignore", message=".*received unexpected keyword arguments")
        metrics = trainer.train(
            train_loader=train_loader,
            test_loaders={},  # errors are measured once, below
            optimizer=optimizer,
            scheduler=scheduler,
            training_loss=training_loss(problem),
        )
        measured = {}
        for split, loader in eval_loaders.items():
            errors = trainer.evaluate({name: term for name, (_, term) in losses.items()}, loader, log_prefix=split)
            for name in losses:
                key = "loss" if name == "data" else f"{name}_loss"
                measured[key if split == "val" else f"{split}_{key}"] = float(errors[f"{split}_{name}"])
    seconds = trainer.seconds
    train_loss = float(metrics["avg_loss"])
    if trainer.run is not None:
        trainer.run.remove()
    for name, value in {"training loss": train_loss, "validation error": measured["loss"]}.items():
        if not math.isfinite(value):
            raise MupError(f"Training diverged: the {name} is {value} at lr {c['lr']:g}: lower lr.")
    return {
        **measured,
        "train_loss": train_loss,
        "seconds": seconds,
        "n_params": sum(p.numel() * (2 if p.is_complex() else 1) for p in model.parameters()),
    }


def build_optimizer(model: nn.Module, config: Mapping[str, Any]) -> torch.optim.Optimizer:
    """The optimizer that a run's configuration asks for.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model.
    config : mapping
        As for :func:`train_run`; ``optimizer``, ``lr`` and what belongs to them are read.
    """
    c = _complete(config)
    common = {"lr": c["lr"], "weight_decay": c["weight_decay"], "lr_mult": c["lr_mult"]}
    betas = (0.9, c["beta2"])
    if c["optimizer"] == "adam":
        optimizer = MuAdam(model, betas=betas, **common)
    elif c["optimizer"] == "adamw":
        optimizer = MuAdamW(model, betas=betas, **common)
    elif c["optimizer"] == "neuralop-adamw":
        optimizer = MuAdamW(model, impl=NeuralopAdamW, betas=betas, **common)
    elif c["optimizer"] == "muon":
        optimizer = MuMuon(model, aux_lr=c["aux_lr"], betas=betas, **common, **c["muon"])
    else:
        optimizer = MuSGD(model, momentum=0.9, **common)
    if c["clip_spectral"] is not None:
        optimizer.register_step_pre_hook(lambda *_: clip_spectral_grad_value_(model, c["clip_spectral"]))
    return optimizer


def _halvings(schedule: str) -> list[int]:
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


def _scheduler(optimizer: torch.optim.Optimizer, c: Mapping[str, Any]) -> torch.optim.lr_scheduler.LRScheduler:
    if c["schedule"] == "constant":
        return torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    if c["schedule"] == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=c["epochs"])
    epochs = _halvings(c["schedule"])
    if len(epochs) == 1:
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=epochs[0], gamma=0.5)
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=epochs, gamma=0.5)


def estimate_flops(config: Mapping[str, Any]) -> float:
    """Floating-point operations of one run, counted from shapes: for comparing costs before spending them.

    A pointwise map costs 2 operations a weight and grid point, a kernel's complex product 8 a weight and sample;
    backward is twice forward. Fourier transforms, activations, losses and the optimizer are left out.
    """
    c = _complete(config)
    problem = get_problem(c["problem"], **c["problem_args"])
    with torch.device("meta"):
        model = build_model(problem, c["model"], c["base"], "standard")
    points = math.prod(problem.grid_shape)
    per_sample = sum(
        8 * p.numel() if p.is_complex() else 2 * p.numel() * points
        for p in model.parameters()
        if p.ndim > 1 and min(p.shape[:2]) > 0
    )
    return 3.0 * per_sample * problem.n_train * c["epochs"]
