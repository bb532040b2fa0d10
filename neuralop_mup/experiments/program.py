"""Many runs of one architecture as one program: data order, initialization, schedules and checkpoints are each run's own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from neuralop_mup.errors import MupError
from neuralop_mup.experiments.stacked_models import StackedModels
from neuralop_mup.experiments.training import Job, Runs, finish, start, training_loss
from neuralop_mup.optim.stacked import StackedStep
from neuralop_mup.tuning.outcome import Outcome, execute

__all__ = ["End", "Run", "Stack", "loss_of", "make_runs", "train_as_one"]

End = tuple[Outcome, str | None]


@dataclass(eq=False)
class Run:
    """A run among others."""

    number: int
    config: Mapping[str, Any]
    job: Job
    random: torch.Tensor  # torch's random state, as this run by itself would have it
    trainer: Any
    epoch: int = 0
    batches: Any = None
    total: float = 0.0  # of this epoch's losses
    samples: int = 0
    error: Exception | None = None
    sample: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def own_random(self) -> Iterator[None]:
        torch.set_rng_state(self.random)
        try:
            yield
        finally:
            self.random = torch.get_rng_state()

    def prepared(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """A batch as the model takes it; what neuralop's Trainer does."""
        if self.job.processor is not None:
            return self.job.processor.preprocess(batch)
        return {k: v.to(self.job.settings.device) for k, v in batch.items() if torch.is_tensor(v)}


class Stack:
    """Runs that are stepped together at present."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs, self._loss = list(runs), loss_of(runs[0].job)
        self.models = StackedModels([run.job.model for run in runs])
        self._stepper = StackedStep([r.trainer.optimizer for r in runs], self.models.parameters, self.models.stacks)

    def step(self, samples: Sequence[Mapping[str, Any]]) -> tuple[list[float], dict[int, Exception]]:
        """One step of all runs whose loss is finite: their losses, and those whose optimizer refused."""
        losses = self.models.losses(samples, self._loss)
        gradients = self.models.gradients(losses)
        values = losses.tolist()
        if all(map(math.isfinite, values)):
            return values, self._stepper.step(gradients)
        # The others go on as if those had not been there.
        going = [r for r, value in enumerate(values) if math.isfinite(value)]
        if not going:
            return values, {}
        rest = Stack([self.runs[r] for r in going])
        refused = rest._stepper.step([None if g is None else g[going] for g in gradients])
        return values, {going[r]: error for r, error in refused.items()}

    def release(self, run: Run) -> None:
        self.models.release(self.runs.index(run))


def loss_of(job: Job) -> Callable[[Any, dict[str, Any]], torch.Tensor]:
    """``loss(output, sample)`` as neuralop's Trainer computes it."""
    loss = training_loss(job.losses)

    def of(out: Any, sample: dict[str, Any]) -> torch.Tensor:
        if job.processor is not None:
            out, sample = job.processor.postprocess(out, sample)
        return 0.0 + loss(out, **sample)

    return of


def make_runs(trains: Runs, items: Sequence[tuple[int, Mapping]], shared: dict, ends: dict[int, End]) -> list[Run]:
    """The runs that can be built, with optimizer and schedule; how the others ended goes to ``ends``."""
    runs = []
    for number, config in items:

        def build(config: Mapping[str, Any], number: int = number) -> float:
            job = trains.job(config, shared)
            random = torch.get_rng_state()
            runs.append(Run(number, config, job, random, start(job)))
            return 0.0

        end = execute(build, config)
        if end[0]["error"] is not None:
            ends[number] = end
    return runs


def train_as_one(trains: Runs, runs: Sequence[Run], ends: dict[int, End]) -> None:
    """Train runs to their ends, epoch by epoch; those that end early leave the others."""

    def settle(run: Run) -> None:
        if stack is not None and run in stack.runs:
            stack.release(run)
        ends[run.number] = execute(lambda _: _last(trains, run), {})
        ends[run.number][0]["seconds"] = run.trainer.spent

    stack: Stack | None = None
    going = []
    for run in runs:
        with run.own_random():
            try:
                run.trainer.restore()
            except MupError as error:
                run.error = error
        run.epoch = run.trainer.start_epoch
        if run.error is not None:
            settle(run)
        elif run.epoch < run.trainer.n_epochs:
            going.append(run)
        else:  # killed after its last epoch
            ends[run.number] = execute(trains, run.config)
    while going:
        begun = time.perf_counter()
        stack = _epoch(going, stack)
        share = (time.perf_counter() - begun) / len(going)
        for run in list(going):
            run.trainer.spent += share
            run.epoch += 1
            if run.error is not None or run.epoch >= run.trainer.n_epochs:
                settle(run)
                going.remove(run)


def _last(trains: Runs, run: Run) -> dict[str, float]:
    """What a run ends with."""
    if run.error is not None:
        raise run.error
    began = time.perf_counter()
    with run.own_random():
        metrics = finish(run.trainer, run.job, run.total / run.samples)
        trains.keep(run.config, run.job)
    run.trainer.spent += time.perf_counter() - began
    return {**metrics, "seconds": run.trainer.spent}


def _epoch(going: Sequence[Run], stack: Stack | None) -> Stack | None:
    """One epoch of every run; one that failed has its error and is left out from there on."""
    for run in going:
        run.total, run.samples = 0.0, 0
        run.job.model.train()
        with run.own_random():
            run.trainer.on_epoch_start(run.epoch)
            run.batches = iter(run.job.train_loader)
    if (processor := going[0].job.processor) is not None:
        processor.to(going[0].job.settings.device).train()
    for index in range(len(going[0].job.train_loader)):
        active = [run for run in going if run.error is None]
        if not active:
            break
        for run in active:
            with run.own_random():
                run.sample = run.prepared(next(run.batches))
        if stack is None or stack.runs != active:
            stack = Stack(active)
        _step(active, stack, index)
    for run in going:
        if run.error is None:
            with run.own_random():
                next(run.batches, None)  # torch's sampler draws once more when it is asked past its end
            run.trainer.scheduler.step()
    return stack


def _step(active: Sequence[Run], stack: Stack, index: int) -> None:
    samples = [run.sample for run in active]
    values, refused = stack.step(samples)
    for r, (run, value) in enumerate(zip(active, values, strict=True)):
        run.total += value
        run.samples += len(run.sample["y"]) if isinstance(run.sample["y"], torch.Tensor) else 1
        if not math.isfinite(value):
            run.error = run.trainer.diverged(index, value)
        elif r in refused:
            run.error = refused[r]
