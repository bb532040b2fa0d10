"""One run of an experiment: an FNO on a problem for so many steps, trained as :func:`neuralop_mup.tune` trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial, wraps
from typing import Any

import torch

from experiments import contenders, untuned
from experiments.contenders import kept_arguments
from experiments.nets import NETS
from neuralop_mup.core.rules import RULE_VERSION, SMALL_KERNELS
from neuralop_mup.lab.loss import losses_of
from neuralop_mup.lab.problems import ProblemData
from neuralop_mup.lab.records import Run
from neuralop_mup.lab.score import Predictor, Score, Validation, rollout_error
from neuralop_mup.lab.settings import Settings, optimizer_arguments
from neuralop_mup.lab.training import VERSION, Training
from problems import get_problem
from problems.apebench import ApeBench, channel_errors

#: What a run may name.
OPTIMIZERS = {**contenders.OPTIMIZERS, **untuned.OPTIMIZERS}
#: Learning rates that a run passes through on its cosine. An epoch of the package's own training is a stage here, so that
#: runs of any number of steps, samples and batch size have the same schedule.
STAGES = 50
#: The error of a rollout that leaves the finite numbers.
LOST = 1e6
#: Entries that are not settings of the package.
_NO_SETTINGS = ("problem", "data", "steps", "rollout", "net", "kernel_init", "loss")


def remembered(make: Callable[..., Run]) -> Callable[..., Run]:
    """A method that makes runs, which are asked for many times and take long to describe: each is made once an instance."""

    @wraps(make)
    def found(self: Any, *asked: Any) -> Run:
        made = self.__dict__.setdefault("_made", {})
        if asked not in made:
            made[asked] = make(self, *asked)
        return made[asked]

    return found


def run_of(config: Mapping[str, Any], **labels: Any) -> Run:
    """A run by what its result depends on; no data is made for it.

    Parameters
    ----------
    config : mapping
        ``problem``, ``data`` (its arguments), ``steps``, and what a run of the package has: ``model``, ``base``, ``lr``, …;
        ``net``, a key of :data:`experiments.nets.NETS`, by default neuralop's FNO; ``loss``, a name as for
        :func:`neuralop_mup.train`. Errors are relative whatever the loss is.
        With ``rollout``, a number of steps, the loss is the error of such a rollout, at most :data:`LOST`: the package's,
        and on APEBench's scenarios theirs.
    """
    settings = Settings.of(_own(config), OPTIMIZERS)
    arguments = kept_arguments(settings.optimizer, optimizer_arguments(settings))
    content = {
        **config,
        "train": "benchmarks",
        "version": {"training": VERSION, "rules": RULE_VERSION, "stages": STAGES},
        "data": get_problem(config["problem"], **config["data"]).content(),
        # Classes by their names, as they were written down when runs were kept.
        "optimizer_arguments": {k: v.__qualname__ if isinstance(v, type) else v for k, v in arguments.items()},
    }
    return Run(content, config, train=train, **labels)


def train(config: Mapping[str, Any]) -> dict[str, Any]:
    """Train it and measure its errors; see :class:`neuralop_mup.lab.training.Training`."""
    torch.set_num_threads(1)
    problem, data = _data(config["problem"], tuple(config["data"].items()))
    error = _by_channel if isinstance(problem, ApeBench) else rollout_error
    score = Score("rollout", partial(_rollout, error=error, steps=config["rollout"])) if "rollout" in config else None
    if config["steps"] % STAGES:
        raise ValueError(f"steps = {config['steps']}, and must be a multiple of {STAGES}.")
    paced = _Paced(
        data.train,
        data.val,
        data.test,
        data.trajectory,
        data.lengths,
        batches=config["steps"] // STAGES,
    )
    build = NETS[config.get("net", "FNO")](*(values.shape[1] for values in data.train), problem.n_dim)
    losses = losses_of(config.get("loss", "l2"), problem.n_dim, problem.losses())
    errors = {name: error for name, (_, error) in losses_of("l2", problem.n_dim, problem.losses()).items()}
    training = Training(build, problem, paced, losses, score=score, optimizers=OPTIMIZERS, errors=errors)
    return training({**_own(config), "epochs": STAGES})


def _own(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a run of the package is given. Records say by a name how large kernels start."""
    drawn = {"init_mult": SMALL_KERNELS} if config.get("kernel_init") == "small" else {}
    return {**{k: v for k, v in config.items() if k not in _NO_SETTINGS}, **drawn}


def _rollout(model: Predictor, data: Validation, error: Callable[..., float], steps: int) -> float:
    """A rollout's error, finite also where it leaves the numbers: else such a run would keep no validation error."""
    return min(error(model, data, steps), LOST)


def _by_channel(model: Predictor, data: Validation, steps: int) -> float:
    """As :func:`rollout_error`, with the errors of channels added up, as APEBench does."""
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
class _Paced(ProblemData):
    """Data of which an epoch is a given number of batches, all of the same size."""

    batches: int = 1

    def loaders(self, batch_size: int, seed: int) -> tuple[Any, dict[str, Any]]:
        train, evals = super().loaders(batch_size, seed)
        return _Stage(train, self.batches), evals


class _Stage:
    """The next so many batches of a loader, which begins anew wherever it ends; what is no whole batch is left out."""

    def __init__(self, loader: Any, batches: int) -> None:
        self.dataset, self.generator, self.batch_size = loader.dataset, loader.generator, loader.sampler.batch_size
        self._batches, self._whole = batches, self._endless(loader)

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return (next(self._whole) for _ in range(self._batches))

    def _endless(self, loader: Any) -> Iterator[dict[str, torch.Tensor]]:
        while True:
            yield from (batch for batch in loader if len(batch["x"]) == min(self.batch_size, len(self.dataset)))
