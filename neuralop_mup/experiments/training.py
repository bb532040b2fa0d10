"""One training run: a flat configuration in, a record out, through neuralop's ``Trainer``."""

from __future__ import annotations

import dataclasses
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from neuralop.losses import H1Loss, LpLoss, WeightedSumLoss
from neuralop.models import FNO
from neuralop.training import Trainer
from torch import nn

from neuralop_mup.core.classify import check_grid
from neuralop_mup.core.parametrize import WIDER, parametrize
from neuralop_mup.errors import Diverged, MupError, nearest
from neuralop_mup.experiments.run_state import RunState
from neuralop_mup.experiments.settings import Settings, build_optimizer, build_scheduler
from neuralop_mup.problems import Problem, get_problem

__all__ = [
    "Job",
    "Runs",
    "build_model",
    "estimate_flops",
    "n_params",
    "run_losses",
    "train_job",
    "train_run",
    "training_loss",
]

Losses = Mapping[str, tuple[float, Callable[..., torch.Tensor]]]


def build_model(
    problem: Problem,
    model: Mapping[str, Any],
    base: Mapping[str, Any],
    rule: str,
    init_mult: Mapping[str, float] | None = None,
    kernel_init: str = "default",
) -> FNO:
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
    kernel_init : str
        See :func:`neuralop_mup.parametrize`.

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
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=WIDER)  # the commands refuse a proxy that is too large, unless it is meant
        return parametrize(fno, base=base, rule=rule, init_mult=init_mult, kernel_init=kernel_init, init=not on_meta)


def n_params(model: nn.Module) -> int:
    """Numbers that are trained; complex ones count as two."""
    return sum(p.numel() * (2 if p.is_complex() else 1) for p in model.parameters())


class _Trainer(Trainer):
    """neuralop's, which stops when the loss is no number any more and keeps its state between epochs."""

    run: RunState | None = None
    spent = 0.0  # seconds of this run before it was resumed
    train_loss = math.nan  # of the last epoch, where that was before it was resumed
    _began: float | None = None

    def start(self) -> None:
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        return self.spent + (0.0 if self._began is None else time.perf_counter() - self._began)

    def restore(self) -> None:
        """Go on from the run's checkpoint, if it has one."""
        if self.run is not None:
            self.start_epoch, self.spent, self.train_loss = self.run.restore()

    def on_epoch_start(self, epoch: int) -> None:
        super().on_epoch_start(epoch)
        if self.run is not None:
            self.run.save_if_due(epoch, self.seconds)

    def train_one_batch(self, idx: int, sample: dict, training_loss: Any) -> torch.Tensor:
        loss = super().train_one_batch(idx, sample, training_loss)
        if not torch.isfinite(loss):
            raise self.diverged(idx, loss.item())
        return loss

    def diverged(self, idx: int, loss: float) -> Diverged:
        """The end of a run whose loss is no number any more."""
        if self.run is not None:
            self.run.remove()
        lr = max(group["lr"] for group in self.optimizer.param_groups)
        return Diverged(
            f"Training diverged: the loss is {loss} at step {idx + 1} of epoch {self.epoch + 1}, where the "
            f"largest learning rate is {lr:.3g}: lower lr."
        )


def run_losses(n_dim: int, names: str = "l2", own: Losses | None = None) -> Losses:
    """What a run minimises, by name: a problem's own losses, with "data" as the named ones.

    Parameters
    ----------
    n_dim : int
        Dimensions of the grid.
    names : str
        ``"l2"``, ``"h1"``, or several with commas, added up; by the first one, "data", runs are compared.
    own : mapping, optional
        The problem's losses; without them the data counts once.
    """
    known = {"l2": lambda: LpLoss(d=n_dim, p=2), "h1": lambda: H1Loss(d=n_dim)}
    chosen = [name.strip().lower() for name in str(names).split(",")]
    for name in chosen:
        if name not in known:
            raise MupError(f"There is no loss {name!r}; {nearest(name, known)}")
    if len(set(chosen)) < len(chosen):
        raise MupError(f"loss = {names!r} names a loss twice; name each once.")
    own = own or {"data": (1.0, known["l2"]())}
    if chosen == ["l2"]:
        return own
    weight, first = own["data"][0], chosen[0]
    return {**own, "data": (weight, known[first]()), **{name: (weight, known[name]()) for name in chosen[1:]}}


def training_loss(losses: Losses) -> Callable[..., torch.Tensor]:
    """``loss(y_pred, **sample)`` that training minimises: the losses, weighted and added."""
    weights, terms = zip(*losses.values(), strict=True)
    return WeightedSumLoss(terms, weights)


def train_run(config: Mapping[str, Any], checkpoints: str | os.PathLike | None = None) -> dict[str, float]:
    """Train one FNO on one problem and report its errors.

    Parameters
    ----------
    config : mapping
        Fields of :class:`~neuralop_mup.experiments.settings.Settings`, and ``lr_mult.ROLE`` and ``init_mult.ROLE``.
    checkpoints : path, optional
        Folder in which the run keeps its state, every five minutes at most. The same configuration goes on from there
        after a kill, bit for bit on a CPU; the file goes when the run is done or diverges.

    Returns
    -------
    dict
        ``loss``: relative L2 error on the validation set, by which hyperparameters are chosen; ``test_loss``: the same
        on the held-out test set; ``train_loss``: mean training loss of the last epoch (of normalised fields, unless the
        problem trains on an equation); ``seconds``; ``n_params`` (complex numbers count as two); ``steps``;
        ``mean_loss``: the validation error of predicting the mean. A problem with further
        losses adds them by name, as ``equation_loss`` and ``test_equation_loss``.

    Raises
    ------
    Diverged
        If the training loss is not finite.
    MupError
        If the configuration has an unknown key or value, or a checkpoint is damaged.
    """
    return train_job(problem_job(config, checkpoints, {}))


@dataclasses.dataclass
class Job:
    """One run that is ready to be trained: everything that its configuration stands for."""

    model: nn.Module
    train_loader: Any
    eval_loaders: Mapping[str, Any]
    processor: Any
    losses: Losses
    settings: Settings
    checkpoints: Any = None


class Runs:
    """A train function by its job, which can also be trained with others; see ``together``."""

    def job(self, config: Mapping[str, Any], shared: dict) -> Job:
        """The run, ready to be trained; ``shared`` keeps what runs of one group share."""
        raise NotImplementedError

    def keep(self, config: Mapping[str, Any], job: Job) -> None:
        """Called when the run is complete; here nothing is kept."""

    def __call__(self, config: Mapping[str, Any]) -> dict[str, float]:
        """One run by itself."""
        job = self.job(config, {})
        metrics = train_job(job)
        self.keep(config, job)
        return metrics


def problem_job(config: Mapping[str, Any], checkpoints: Any, shared: dict) -> Job:
    """The run of :func:`train_run`; ``shared`` keeps what all runs on one problem may share, its data."""
    s = Settings.of(config)
    if not shared:
        problem = get_problem(s.problem, **s.problem_args)
        data = problem.load()
        losses = run_losses(problem.n_dim, s.loss, problem.losses())
        shared.update(problem=problem, data=data, processor=problem.processor(data), losses=losses)
    problem, data = shared["problem"], shared["data"]
    check_batch_size(s.batch_size, len(data.train[0]))
    torch.manual_seed(s.seed)
    model = build_model(problem, s.model, s.base, s.rule, s.init_mult, s.kernel_init)
    loaders = data.loaders(batch_size=s.batch_size, seed=s.seed)
    return Job(model, *loaders, shared["processor"], shared["losses"], s, checkpoints)


def check_batch_size(batch_size: int, n_train: int) -> None:
    """MupError for a batch larger than the data."""
    if batch_size > n_train:
        raise MupError(
            f"A batch of {batch_size} is larger than the training data, {n_train} samples: each epoch would be one step. "
            f"Take a batch_size of {n_train} at most, better a tenth of it, or more data."
        )


def train_job(job: Job) -> dict[str, float]:
    """Train a parametrized model through neuralop's Trainer and measure its errors; see :func:`train_run`."""
    trainer = start(job)
    trainer.restore()
    if trainer.start_epoch == trainer.n_epochs:  # killed after its last epoch, before its record was written
        return finish(trainer, job, trainer.train_loss)
    trainer.start()
    with quiet():
        metrics = trainer.train(
            train_loader=job.train_loader,
            test_loaders={},  # errors are measured once, by finish
            optimizer=trainer.optimizer,
            scheduler=trainer.scheduler,
            training_loss=training_loss(job.losses),
        )
    return finish(trainer, job, float(metrics["avg_loss"]))


def start(job: Job) -> _Trainer:
    """A trainer with the run's optimizer and schedule, its checkpoint named but not read."""
    s = job.settings
    model = job.model.to(s.device)
    epochs = min(s.epochs, s.until or s.epochs)
    trainer = _Trainer(model=model, n_epochs=epochs, data_processor=job.processor, device=s.device)
    trainer.optimizer = build_optimizer(model, s)
    trainer.scheduler = build_scheduler(trainer.optimizer, s)
    if job.checkpoints is not None:
        trainer.run = RunState(job.checkpoints, dataclasses.asdict(dataclasses.replace(s, until=None)))
        trainer.run.attach(job.train_loader, model=model, optimizer=trainer.optimizer, scheduler=trainer.scheduler)
    return trainer


@contextmanager
def quiet() -> Iterator[None]:
    """neuralop's Trainer hands the whole batch to the model and to the loss, and both warn about what they ignore."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*received unexpected keyword arguments")
        yield


def finish(trainer: _Trainer, job: Job, train_loss: float) -> dict[str, float]:
    """Measure a trained model's errors, and remove its checkpoint or keep it for the next rung."""
    s, losses = job.settings, job.losses
    with quiet():
        measured = _against_the_mean(losses["data"][1], job.eval_loaders["val"])
        for split, loader in job.eval_loaders.items():
            errors = trainer.evaluate({name: term for name, (_, term) in losses.items()}, loader, log_prefix=split)
            for name in losses:
                key = "loss" if name == "data" else f"{name}_loss"
                measured[key if split == "val" else f"{split}_{key}"] = float(errors[f"{split}_{name}"])
    seconds = trainer.seconds
    if trainer.run is not None and trainer.n_epochs == s.epochs:
        trainer.run.remove()
    elif trainer.run is not None:
        trainer.run.save(trainer.n_epochs, seconds, train_loss)
    for name, value in {"training loss": train_loss, "validation error": measured["loss"]}.items():
        if not math.isfinite(value):
            raise Diverged(f"Training diverged: the {name} is {value} at lr {s.lr:g}: lower lr.")
    steps = len(job.train_loader) * trainer.n_epochs
    return {**measured, "train_loss": train_loss, "seconds": seconds, "n_params": n_params(job.model), "steps": steps}


def _against_the_mean(term: Callable[..., torch.Tensor], loader: Any) -> dict[str, float]:
    """``mean_loss``: the validation error of the mean target, which knows nothing of the input; none off a grid."""
    targets = [batch["y"] for batch in loader]
    if not all(isinstance(y, torch.Tensor) and y.shape[1:] == targets[0].shape[1:] for y in targets):
        return {}
    mean, n = torch.cat(targets).mean(0, keepdim=True), sum(map(len, targets))
    with torch.no_grad():
        total = sum(float(term(mean.expand_as(batch["y"]), **batch)) for batch in loader)
    return {"mean_loss": total / n}


def estimate_flops(config: Mapping[str, Any]) -> float:
    """Floating-point operations of one run, counted from shapes: for comparing costs before spending them.

    A pointwise map costs 2 operations a weight and grid point, a kernel's complex product 8 a weight and sample;
    backward is twice forward. Fourier transforms, activations, losses and the optimizer are left out.
    """
    s = Settings.of(config)
    problem = get_problem(s.problem, **s.problem_args)
    with torch.device("meta"):
        model = build_model(problem, s.model, s.base, "standard")
    points = math.prod(problem.grid_shape)
    per_sample = sum(
        8 * p.numel() if p.is_complex() else 2 * p.numel() * points
        for p in model.parameters()
        if p.ndim > 1 and min(p.shape[:2]) > 0
    )
    return 3.0 * per_sample * problem.n_train * s.epochs
