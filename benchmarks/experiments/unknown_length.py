"""Trainings of unknown length, which end with a cooldown, compared with a cosine schedule of known length.

One run of ``MuSOAP(model)`` is saved at half of each length, ends there with ``cooldown``, is loaded and continues. The same
happens at 7/10. It is compared with ``MuSOAP(model, steps=…)`` and a cosine schedule for each length, from the same initial
weights and with the same samples. Its learning rate and the shape and share of the cooldown were chosen on three problems.
The others are held out. We also measure the error and the cost of averages of the weights, which need no cooldown.

We wrote down these hypotheses before measuring: the median error is at most 1.05 times that of the cosines, and 1.15 times
in the worst case. An average whose window grows with the training comes within a tenth of a cooldown. An average of 1,000
steps is useless in short trainings, and one of 100 steps costs more than another tenth in long ones. Each takes a few
percent of the time.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import geometric_mean, median
from typing import Any

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import neuralop_mup as nm
from experiments.experiment import Experiment
from experiments.pages import NAMES, dotted, percent, table
from experiments.plain_training import BATCH, PlainTraining, build
from experiments.records import loss_of, metrics_of, missing
from experiments.training import remembered
from neuralop_mup.core.rules import RULE_VERSION
from neuralop_mup.lab.outcome import is_complete
from neuralop_mup.lab.records import Run
from neuralop_mup.optim.schedule import anytime_lr, default_lr
from problems import get_problem

#: Increase this number if the same configuration leads to different numbers.
VERSION = 2

_DATA = {"n_train": 300, "n_val": 100, "n_test": 1, "grid": 16}
_IN_2D = {"n_modes": (8, 8), "hidden_channels": 12}
_KDV_IN_TIME = "korteweg-de-vries-in-time"
#: Problem → arguments of its data, and the model. The first three were used to choose.
PROBLEMS = {
    "burgers": ({**_DATA, "grid": 64, "viscosity": 0.02}, {"n_modes": (8,), "hidden_channels": 16}),
    "korteweg-de-vries": ({**_DATA, "grid": 64, "time": 0.2}, {"n_modes": (16,), "hidden_channels": 16}),
    "allen-cahn": (_DATA, _IN_2D),
    _KDV_IN_TIME: (
        {"n_train": 40, "n_val": 4, "n_test": 1, "states": 30, "grid": 64},
        {"n_modes": (24,), "hidden_channels": 16},
    ),
    "gray-scott": (_DATA, _IN_2D),
    "darcy": (_DATA, _IN_2D),
}
CHOSEN_ON = tuple(PROBLEMS)[:3]
_LABELS = {**NAMES, _KDV_IN_TIME: "Korteweg–de Vries, a step in time"}

#: Name → share of the training. Half was the best of 0.2, 0.3, 0.4 and 0.5 on the development problems.
SHARES = {"a cooldown of half": 0.5, "a cooldown of three tenths": 0.3}
COOLDOWN, UNCHANGED = next(iter(SHARES)), "the weights as they are"


#: Name → arguments of torch's AveragedModel.
AVERAGES = {
    "average of 100 steps": {"multi_avg_fn": get_ema_multi_avg_fn(0.99)},
    "average of 1,000 steps": {"multi_avg_fn": get_ema_multi_avg_fn(0.999)},
    # An average of about the last tenth of all weights.
    "average of the last tenth": {"avg_fn": lambda average, own, number: torch.lerp(average, own, 10 / (int(number) + 10))},
}


@dataclass(frozen=True)
class UnknownLength(Experiment):
    """Train on three development problems and three held-out problems."""

    problems: tuple[str, ...] = tuple(PROBLEMS)
    lengths: tuple[int, ...] = (250, 1000, 4000)
    seeds: tuple[int, ...] = (0, 1, 2)
    smaller: Mapping[str, int] = field(default_factory=dict)

    about = "trainings of unknown length: the error after a cooldown, and of averages without a cooldown"
    notes = (
        "Errors relative to a cosine schedule of known length. Ratios: geometric means over seeds, with their number in "
        "brackets, after a cooldown of half of the training. Alternatives: median over the problems, and the time of an "
        "average relative to that of a step."
    )
    metrics = ("errors", "times", "seconds")

    def tiny(self) -> UnknownLength:
        """Return one problem with few samples."""
        return replace(self, problems=("burgers",), lengths=(10, 20), seeds=(0,), smaller={"n_train": 20, "n_val": 10})

    @remembered
    def run(self, name: str, seed: int, steps: int | None = None) -> Run:
        """Return a training of known length, or without ``steps`` the one that ends at all lengths."""
        data, model = PROBLEMS[name]
        config = {
            "problem": name,
            "data": data | self.smaller,
            "model": model,
            "steps": steps,
            "lengths": self.lengths if steps is None else None,
            "seed": seed,
        }
        content = {
            **config,
            "data": get_problem(name, **config["data"]).content(),
            "train": "unknown-length",
            "batch_size": BATCH,
            "rates": [anytime_lr(0), anytime_lr(1000)] if steps is None else default_lr(steps),
            "version": {"unknown-length": VERSION, "rules": RULE_VERSION},
        }
        if steps is None:
            content["shares"] = list(SHARES.values())
        size = f"{name}, {'length not known' if steps is None else f'{steps} steps'}"
        return Run(content, config, train=train, size=size, params={}, seed=seed)

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """Return the missing runs, seed by seed."""
        lengths = (*self.lengths[:-1], None, self.lengths[-1])
        return missing(records, (self.run(name, seed, n) for seed in self.seeds for n in lengths for name in self.problems))

    def ratios(self, records: Any, how: str) -> dict[tuple[str, int], list[float]]:
        """Return errors relative to the cosine by problem and length, with one value for each seed.

        A ratio is infinite if the training of unknown length failed.
        """
        found = {}
        for name, seed, steps in product(self.problems, self.seeds, self.lengths):
            record, cosine = records.get(self.run(name, seed)), loss_of(records.get(self.run(name, seed, steps)))
            if record is not None and cosine is not None and math.isfinite(cosine):
                error = record["metrics"]["errors"][str(steps)][how] if is_complete(record) else math.inf
                found.setdefault((name, steps), []).append(error / cosine)
        return found

    def numbers(self, records: Any) -> dict[str, str]:
        """Return the ratios after a cooldown, and those of the alternatives."""
        by_how = {how: self.ratios(records, how) for how in (*SHARES, *AVERAGES, UNCHANGED)}
        by_seed = by_how[COOLDOWN]
        means = {cell: geometric_mean(own) for cell, own in by_seed.items()}
        found = {}
        if held_out := [ratio for (name, _), ratio in means.items() if name not in CHOSEN_ON]:
            found |= {"others.most": f"{max(held_out):.2f}", "single.most": f"{max(map(max, by_seed.values())):.2f}"}
        rows = []
        for name in self.problems:
            cells = [(name, steps) for steps in self.lengths]
            texts = [f"{means[cell]:.2f} ({len(by_seed[cell])})" if cell in means else "–" for cell in cells]
            rows.append([_LABELS[name], "chosen on" if name in CHOSEN_ON else "", *texts])
        heads = [f"{steps:,} steps" for steps in self.lengths]
        found["ratios"] = table(["problem", "", *heads], rows)
        runs = metrics_of(records, {key: self.run(*key) for key in product(self.problems, self.seeds)})
        rows = []
        for how, ratios in by_how.items():
            values = [[geometric_mean(own) for (_, n), own in ratios.items() if n == steps] for steps in self.lengths]
            times = [own["times"][how] for own in runs.values() if how in own["times"]]
            texts = [*(f"{median(own):.2f}" if own else "–" for own in values), percent(median(times)) if times else "–"]
            found |= {dotted(f"{how} {end}"): text for end, text in zip((*self.lengths, "time"), texts, strict=True)}
            rows.append([how, *texts])
        return {**found, "alternatives": table(["after", *heads, "time"], rows)}


# A run


def train(config: Mapping[str, Any]) -> dict[str, Any]:
    """Train for a known number of steps, or end one training at all lengths."""
    torch.set_num_threads(1)
    start, steps = time.perf_counter(), config["steps"]
    problem = get_problem(config["problem"], **config["data"])
    data, dims = problem.load(), (0, *range(2, 2 + problem.n_dim))
    moments = [(values.mean(dims, keepdim=True), values.std(dims, keepdim=True)) for values in data.train]
    samples, seed = len(data.train[0]), config["seed"]

    def batch(number: int) -> torch.Tensor:
        """Return the samples of a step, which only depend on its number."""
        epoch, position = divmod(number, samples // BATCH)
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(10_000 * seed + epoch))
        return order[position * BATCH : (position + 1) * BATCH]

    model = build(problem, config["model"], seed)
    training = PlainTraining(model, nm.MuSOAP(model, steps=steps), data, moments, batch)
    if steps is None:
        measured = errors_at(training, config["lengths"])
    else:
        training.train_until(steps, CosineAnnealingLR(training.optimizer, steps))
        measured = {"loss": training.error()}
    return {**measured, "seconds": time.perf_counter() - start}


def errors_at(training: PlainTraining, lengths: Sequence[int]) -> dict[str, Any]:
    """Return errors at each length, with and without a cooldown, and times of averages relative to those of steps."""
    averages = {name: AveragedModel(training.model, **arguments) for name, arguments in AVERAGES.items()}
    seconds = dict.fromkeys((UNCHANGED, *averages), 0.0)
    errors: dict[int, dict[str, float]] = {steps: {} for steps in lengths}
    for number in range(1, max(lengths) + 1):
        seconds[UNCHANGED] += _seconds(training.train_until, number)
        for name, average in averages.items():
            seconds[name] += _seconds(average.update_parameters, training.model)
        for (how, share), steps in product(SHARES.items(), lengths):
            if round((1 - share) * steps) == number:
                errors[steps][how] = error_after_cooldown(training, steps)
        if number in lengths:
            models = {UNCHANGED: training.model, **averages}
            errors[number] |= {how: training.error(model) for how, model in models.items()}
    rounded = {str(steps): {how: float(f"{error:.5g}") for how, error in own.items()} for steps, own in errors.items()}
    times = {name: round(seconds[name] / seconds[UNCHANGED], 5) for name in averages}
    return {"loss": errors[max(lengths)][COOLDOWN], "errors": rounded, "times": times}


def error_after_cooldown(training: PlainTraining, steps: int) -> float:
    """Return the error if a cooldown ends the training after ``steps`` steps, and restore the state before it."""
    before = training.step
    model, optimizer = copy.deepcopy((training.model.state_dict(), training.optimizer.state_dict()))
    training.optimizer.cooldown(steps - before)
    training.train_until(steps)
    error, training.step = training.error(), before
    training.model.load_state_dict(model)
    training.optimizer.load_state_dict(optimizer)
    return error


def _seconds(function: Callable[[Any], Any], argument: Any) -> float:
    """Return the time of a call."""
    start = time.perf_counter()
    function(argument)
    return time.perf_counter() - start
