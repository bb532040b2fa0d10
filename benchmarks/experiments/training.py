"""Train one run of an experiment: a model on a problem for a number of steps, as :func:`neuralop_mup.tune` does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial, wraps
from itertools import islice, repeat
from typing import Any

import torch

from experiments.balancing import BalancedTraining
from experiments.contenders import OPTIMIZERS, arguments_in_key
from experiments.nets import NETS
from experiments.records import LOST
from neuralop_mup.core.rules import RULE_VERSION, SMALL_KERNELS
from neuralop_mup.lab.loss import losses_of
from neuralop_mup.lab.problems import ProblemData
from neuralop_mup.lab.records import Run
from neuralop_mup.lab.score import Predictor, Score, Validation, rollout_error
from neuralop_mup.lab.settings import Settings, optimizer_arguments
from neuralop_mup.lab.training import VERSION, Training
from problems import get_problem
from problems.apebench import ApeBench, channel_errors

#: Number of values of the learning rate in a run. A stage replaces the epoch of the package's training, so the schedule is
#: the same for any number of steps, samples and batch size.
STAGES = 50
#: Entries of a run that are not settings of the package.
_OWN_ENTRIES = ("problem", "data", "steps", "rollout", "net", "kernel_init", "loss", "balancing")


def remembered(make: Callable[..., Run]) -> Callable[..., Run]:
    """Cache a method that returns runs, for each instance. Keys of runs take long to compute."""

    @wraps(make)
    def cached(self: Any, *arguments: Any) -> Run:
        runs = self.__dict__.setdefault("_runs_by_arguments", {})
        if arguments not in runs:
            runs[arguments] = make(self, *arguments)
        return runs[arguments]

    return cached


def run_of(config: Mapping[str, Any], **labels: Any) -> Run:
    """Return a run with the key of everything that its result depends on. No data is generated.

    Parameters
    ----------
    config : mapping
        The settings of a run of the package, such as ``model``, ``base`` and ``lr``, and these entries:

        * ``problem``, ``data`` (its arguments) and ``steps``;
        * ``net``, a key of :data:`experiments.nets.NETS`, by default FNO;
        * ``loss``, as for :func:`neuralop_mup.train`. Errors are always relative;
        * ``balancing``, a key of :data:`experiments.balancing.METHODS`;
        * ``rollout``, a number of steps. The loss of the run is then the error of such a rollout, at most :data:`LOST`.
          APEBench's scenarios use APEBench's error.
    **labels
        Labels of the run: ``size``, ``params`` and ``seed``.
    """
    settings = Settings.of(_package_settings(config), OPTIMIZERS)
    arguments = arguments_in_key(settings.optimizer, optimizer_arguments(settings))
    content = {
        **config,
        "train": "benchmarks",
        "version": {"training": VERSION, "rules": RULE_VERSION, "stages": STAGES},
        "data": get_problem(config["problem"], **config["data"]).content(),
        # The keys of older runs contain names of classes.
        "optimizer_arguments": {k: v.__qualname__ if isinstance(v, type) else v for k, v in arguments.items()},
    }
    return Run(content, config, train=train, **labels)


def train(config: Mapping[str, Any]) -> dict[str, Any]:
    """Train a run and return its errors; see :class:`neuralop_mup.lab.training.Training`."""
    torch.set_num_threads(1)
    problem, data = _data(config["problem"], tuple(config["data"].items()))
    error = _by_channel if isinstance(problem, ApeBench) else rollout_error
    score = Score("rollout", partial(_rollout, error=error, steps=config["rollout"])) if "rollout" in config else None
    if config["steps"] % STAGES:
        raise ValueError(f"steps must be a multiple of {STAGES}, got {config['steps']}.")
    batches = config["steps"] // STAGES
    staged = _StagedData(data.train, data.val, data.test, data.trajectory, data.lengths, batches=batches)
    build = NETS[config.get("net", "FNO")](*(values.shape[1] for values in data.train), problem.n_dim)
    losses = losses_of(config.get("loss", "l2"), problem.n_dim, problem.losses())
    errors = {name: error for name, (_, error) in losses_of("l2", problem.n_dim, problem.losses()).items()}
    kind = partial(BalancedTraining, config["balancing"]) if "balancing" in config else Training
    training = kind(build, problem, staged, losses, score=score, optimizers=OPTIMIZERS, errors=errors)
    return training({**_package_settings(config), "epochs": STAGES})


def _package_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the package in a run. Runs have a name for the initial size of kernels."""
    init = {"init_mult": SMALL_KERNELS} if config.get("kernel_init") == "small" else {}
    return {**{k: v for k, v in config.items() if k not in _OWN_ENTRIES}, **init}


def _rollout(model: Predictor, data: Validation, error: Callable[..., float], steps: int) -> float:
    """Return a finite rollout error. A run with an infinite one would not keep its validation error."""
    return min(error(model, data, steps), LOST)


def _by_channel(model: Predictor, data: Validation, steps: int) -> float:
    """Return the rollout error as :func:`rollout_error` does, but with the sum over channels, as in APEBench."""
    state, errors = data.states(0), []
    for number in range(1, steps + 1):
        state = model(state)
        errors.append(channel_errors(state, data.states(number)).mean())
    value = float(torch.stack(errors).log().mean().exp())
    return value if math.isfinite(value) else math.inf


@cache
def _data(problem: str, arguments: tuple) -> tuple[Any, ProblemData]:
    made = get_problem(problem, **dict(arguments))
    return made, made.load()


@dataclass(frozen=True, eq=False)
class _StagedData(ProblemData):
    """Data with a given number of batches per epoch, all of the same size."""

    batches: int = 1

    def loaders(self, batch_size: int, seed: int) -> tuple[Any, dict[str, Any]]:
        train, evals = super().loaders(batch_size, seed)
        return _Stage(train, self.batches), evals


class _Stage:
    """Return the next batches of a loader, which restarts at its end. Incomplete batches are skipped."""

    def __init__(self, loader: Any, batches: int) -> None:
        self.dataset, self.generator, self.batch_size = loader.dataset, loader.generator, loader.batch_size
        size, self._batches = min(self.batch_size, len(self.dataset)), batches
        self._all_batches = (batch for epoch in repeat(loader) for batch in epoch if len(batch["x"]) == size)

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return islice(self._all_batches, self._batches)
