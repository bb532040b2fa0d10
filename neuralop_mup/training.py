"""One training run: a flat configuration in, a record out, through neuralop's ``Trainer``."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from neuralop.losses import LpLoss
from neuralop.models import FNO
from neuralop.training import AdamW as NeuralopAdamW
from neuralop.training import Trainer
from torch import nn

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.muon import MuMuon
from neuralop_mup.optim import MuAdam, MuAdamW, MuSGD, clip_spectral_grad_value_
from neuralop_mup.parametrize import parametrize
from neuralop_mup.problems import Problem, get_problem
from neuralop_mup.roles import check_grid

__all__ = ["DEFAULTS", "OPTIMIZERS", "build_model", "build_optimizer", "estimate_flops", "train_run"]

OPTIMIZERS = ("adam", "adamw", "neuralop-adamw", "sgd", "muon")

# Every key that a run understands, with its default; hyperparameters of the search are among them.
DEFAULTS: dict[str, Any] = {
    "problem": "burgers",
    "problem_args": {},
    "model": {},
    "base": {},
    "rule": "log-modes",
    "lr": 1e-3,
    "seed": 0,
    "epochs": 8,
    "batch_size": 20,
    "optimizer": "adam",
    "aux_lr": None,  # muon's, for what is no map between widths; the others have none
    "weight_decay": 0.0,
    "beta2": 0.999,
    "schedule": "cosine",
    "clip_spectral": None,
}
_MASTERS = ("lr_mult", "init_mult")


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
    _halvings(full["schedule"])
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


def train_run(config: Mapping[str, Any]) -> dict[str, float]:
    """Train one FNO on one problem and report its errors.

    Parameters
    ----------
    config : mapping
        Keys of :data:`DEFAULTS`, and ``lr_mult.ROLE`` and ``init_mult.ROLE``. ``model`` holds FNO's constructor
        arguments, ``base`` the overrides that make the base model. ``schedule`` moves the learning rate epoch by
        epoch: ``"cosine"`` (to zero), ``"constant"``, ``"halve:50"`` (every 50 epochs) or ``"halve:100,150,200"``
        (after these epochs).

    Returns
    -------
    dict
        ``loss``: relative L2 error on the validation set, by which hyperparameters are chosen; ``test_loss``: the same
        on the held-out test set; ``train_loss``: mean training loss of the last epoch (relative L2 of normalised
        fields); ``seconds``; ``n_params`` (complex numbers count as two).

    Raises
    ------
    MupError
        If the configuration has an unknown key or value, or the training loss is not finite.
    """
    c = _complete(config)
    problem = get_problem(c["problem"], **c["problem_args"])
    data = problem.load()
    torch.manual_seed(c["seed"])
    model = build_model(problem, c["model"], c["base"], c["rule"], c["init_mult"])
    optimizer = build_optimizer(model, config)
    train_loader, eval_loaders = data.loaders(batch_size=c["batch_size"], seed=c["seed"])
    loss = LpLoss(d=problem.n_dim, p=2)
    trainer = Trainer(model=model, n_epochs=c["epochs"], data_processor=data.processor(), device="cpu")
    start = time.perf_counter()
    with warnings.catch_warnings():
        # neuralop's Trainer hands the whole batch to the model and to the loss, and both warn about what they ignore.
        warnings.filterwarnings("ignore", message=".*received unexpected keyword arguments")
        metrics = trainer.train(
            train_loader=train_loader,
            test_loaders={},  # errors are measured once, below
            optimizer=optimizer,
            scheduler=_scheduler(optimizer, c),
            training_loss=loss,
        )
        errors = {
            name: float(trainer.evaluate({"l2": loss}, loader, log_prefix=name)[f"{name}_l2"])
            for name, loader in eval_loaders.items()
        }
    seconds = time.perf_counter() - start
    train_loss = float(metrics["avg_loss"])
    if not math.isfinite(train_loss):
        raise MupError(f"Training diverged: the last epoch's loss is {train_loss} at lr {c['lr']:g}.")
    return {
        "loss": errors["val"],
        "test_loss": errors["test"],
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
        optimizer = MuMuon(model, aux_lr=c["aux_lr"], betas=betas, **common)
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
    backward is twice forward. Fourier transforms, activations and the optimizer are left out.
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
