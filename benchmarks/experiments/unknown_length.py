"""Trainings whose length is not known: one that is ended at several lengths by cooldowns, over those that knew theirs.

One run of ``MuSOAP(model)`` is saved at half of each length, ended there by ``cooldown``, loaded and goes on; and once more
at 7/10. It is compared with ``MuSOAP(model, steps=…)`` under a cosine of each length, from the same start and on the same
samples. Its height and the cooldown's shape and share were chosen on three of the problems, and nothing on the others. For a
look in between without a cooldown averages of the weights go along, of which the error and the time are measured.

Hypotheses, written down before measuring: errors are at most 1.05 times those of the cosines in the median, and 1.15 at
worst. An average comes within a tenth of a cooldown where its window grows with the training; one of 1,000 steps is useless
in short trainings, one of 100 steps leaves more than another tenth in long ones; each takes a few percent of the time.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import geometric_mean, median
from typing import Any

import torch
from neuralop.losses import LpLoss
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import neuralop_mup as nm
from experiments.kept import loss_of, metrics_of, missing
from experiments.pages import NAMES, dotted, percent, percents, table
from experiments.training import remembered
from neuralop_mup.core.rules import RULE_VERSION
from neuralop_mup.errors import Diverged
from neuralop_mup.lab.outcome import is_complete
from neuralop_mup.lab.records import Run
from neuralop_mup.lab.training import FNOs
from neuralop_mup.optim.schedule import anytime_lr, default_lr
from problems import get_problem

BATCH = 10
#: Raise it whenever the same configuration gives other numbers.
VERSION = 2

_DATA = {"n_train": 300, "n_val": 100, "n_test": 1}
_IN_2D = {"n_modes": (8, 8), "hidden_channels": 12}
_KDV, _KDV_IN_TIME = "korteweg-de-vries", "korteweg-de-vries-in-time"
#: Problem → arguments of its data, and the model.
CHOSEN_ON: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "burgers": ({**_DATA, "grid": 64, "viscosity": 0.02}, {"n_modes": (8,), "hidden_channels": 16}),
    _KDV: ({**_DATA, "grid": 64, "time": 0.2}, {"n_modes": (16,), "hidden_channels": 16}),
    "allen-cahn": ({**_DATA, "grid": 16}, _IN_2D),
}
REPORTED_ON: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    _KDV_IN_TIME: (
        {"n_train": 40, "n_val": 4, "n_test": 1, "states": 30, "grid": 64},
        {"n_modes": (24,), "hidden_channels": 16},
    ),
    "gray-scott": ({**_DATA, "grid": 16}, _IN_2D),
    "darcy": ({**_DATA, "grid": 16}, _IN_2D),
}
PROBLEMS = CHOSEN_ON | REPORTED_ON
_TOLD = {**NAMES, _KDV_IN_TIME: "Korteweg–de Vries, a step in time"}

#: Name → share of the training. Half is the best of 0.2, 0.3, 0.4 and 0.5 on the problems that it was chosen on.
SHARES = {"a cooldown of half": 0.5, "a cooldown of three tenths": 0.3}
COOLDOWN, AS_IT_IS = next(iter(SHARES)), "the weights as they are"


def _growing(average: torch.Tensor, weights: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """An average of about the last tenth of all weights."""
    return torch.lerp(average, weights, 10 / (int(number) + 10))


#: Name → arguments of torch's AveragedModel.
AVERAGES: dict[str, dict[str, Any]] = {
    "average of 100 steps": {"multi_avg_fn": get_ema_multi_avg_fn(0.99)},
    "average of 1,000 steps": {"multi_avg_fn": get_ema_multi_avg_fn(0.999)},
    "average of the last tenth": {"avg_fn": _growing},
}


@dataclass(frozen=True)
class UnknownLength:
    """Six problems, three of which chose nothing."""

    problems: tuple[str, ...] = tuple(PROBLEMS)
    lengths: tuple[int, ...] = (250, 1000, 4000)
    seeds: tuple[int, ...] = (0, 1, 2)
    small: bool = False

    about = "what a training loses whose length was not known, and what looking in between without a cooldown costs"
    metrics = ("errors", "times", "seconds")

    def tiny(self) -> UnknownLength:
        """One problem of a few samples."""
        return replace(self, problems=("burgers",), lengths=(10, 20), seeds=(0,), small=True)

    # What is wanted

    @remembered
    def run(self, name: str, seed: int, steps: int | None = None) -> Run:
        """A training that knew its length, or without ``steps`` the one that is ended at all lengths."""
        data, model = PROBLEMS[name]
        config = {
            "problem": name,
            "data": {**data, **({"n_train": 20, "n_val": 10} if self.small else {})},
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
        """The runs that are missing: one seed and the short lengths first."""
        kinds = (*self.lengths[:-1], None, self.lengths[-1])
        runs = (self.run(name, seed, steps) for seed in self.seeds for steps in kinds for name in self.problems)
        return missing(records, runs)

    # What is done

    def over(self, records: Any, how: str) -> dict[tuple[str, int], list[float]]:
        """Problem and length → errors over those of the cosine, a seed each; infinite where the one run did not train."""
        found: dict[tuple[str, int], list[float]] = {}
        for name, seed, steps in product(self.problems, self.seeds, self.lengths):
            record, cosine = records.get(self.run(name, seed)), loss_of(records.get(self.run(name, seed, steps)))
            if record is not None and cosine is not None and math.isfinite(cosine):
                error = record["metrics"]["errors"][str(steps)][how] if is_complete(record) else math.inf
                found.setdefault((name, steps), []).append(error / cosine)
        return found

    def table(self, records: Any) -> str:
        """What is done so far."""
        numbers = self.numbers(records)
        said = (
            "# Trainings whose length is not known\n\nOne run is ended at each length by a cooldown of half of it, "
            "and goes on as if it had not been. Its error over that of a cosine of known length: geometric means over "
            "seeds, of which the number stands in brackets.\n"
        )
        looks = (
            "Median and range over the problems of what else there is to look at, and of the time that an average takes at "
            "each step over that of the step."
        )
        if not numbers:
            return said
        return "\n".join([said, numbers["ratios"], "", looks, numbers["looks"], ""])

    def numbers(self, records: Any) -> dict[str, str]:
        """What pages quote."""
        single = self.over(records, COOLDOWN)
        if not single:
            return {}
        over = {cell: geometric_mean(own) for cell, own in single.items()}
        said = {"single.most": f"{max(map(max, single.values())):.2f}"}
        if others := [ratio for (name, _), ratio in over.items() if name in REPORTED_ON]:
            said |= {"others.median": f"{median(others):.2f}", "others.most": f"{max(others):.2f}"}
        rows = []
        for name in self.problems:
            cells = [(name, steps) for steps in self.lengths]
            told = [f"{over[cell]:.2f} ({len(single[cell])})" if cell in over else "–" for cell in cells]
            rows.append([_TOLD[name], "chosen on" if name in CHOSEN_ON else "", *told])
        heads = [f"{steps:,} steps" for steps in self.lengths]
        said["ratios"] = "\n".join(table(["problem", "", *heads], rows))
        return {**said, **self._looks(records, heads)}

    def _looks(self, records: Any, heads: list[str]) -> dict[str, str]:
        every = metrics_of(records, {both: self.run(*both) for both in product(self.problems, self.seeds)})
        said, rows = {}, []
        for how in (*SHARES, *AVERAGES, AS_IT_IS):
            over, cells = self.over(records, how), []
            for steps in self.lengths:
                own = [geometric_mean(ratios) for (_, at), ratios in over.items() if at == steps]
                cells.append(f"{median(own):.2f} ({min(own):.2f} to {max(own):.2f})" if own else "–")
                said |= {dotted(f"{how} {steps}"): f"{median(own):.2f}"} if own else {}
            times = [own["times"][how] for own in every.values() if how in own["times"]]
            said |= {dotted(f"{how} time"): percent(median(times))} if times else {}
            rows.append([how, *cells, percents(times) if times else "–"])
        return {**said, "looks": "\n".join(table(["after", *heads, "time"], rows))}


# A run


def train(config: Mapping[str, Any]) -> dict[str, Any]:
    """Train for the steps that were known, or end one training at all lengths."""
    torch.set_num_threads(1)
    began, training = time.perf_counter(), _Training(config)
    if config["steps"] is None:
        measured = training.at_all(config["lengths"])
    else:
        training.to(config["steps"], CosineAnnealingLR(training.optimizer, config["steps"]))
        measured = {"loss": training.error(training.model)}
    return {**measured, "seconds": time.perf_counter() - began}


class _Training:
    """A model, its optimizer and its data; which samples a step has follows from its number."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        problem = get_problem(config["problem"], **config["data"])
        data, over = problem.load(), (0, *range(2, 2 + problem.n_dim))
        (x, y), (x_seen, self.y_seen) = data.train, data.val
        mean, std = x.mean(over, keepdim=True), x.std(over, keepdim=True)
        self.x, self.x_seen = (x - mean) / std, (x_seen - mean) / std
        self.mean, self.std = y.mean(over, keepdim=True), y.std(over, keepdim=True)
        self.y = (y - self.mean) / self.std
        self.seed, self.taken, self.loss = config["seed"], 0, LpLoss(d=problem.n_dim, p=2)
        torch.manual_seed(self.seed)
        size = {**config["model"], "n_modes": tuple(config["model"]["n_modes"])}
        self.model = nm.parametrize(FNOs(problem.in_channels, problem.out_channels, problem.n_dim)(n_layers=4, **size))
        self.optimizer = nm.MuSOAP(self.model, steps=config["steps"])

    def at_all(self, lengths: Sequence[int]) -> dict[str, Any]:
        """Errors at each length, after a cooldown and without, and the times of averages over that of the steps."""
        averages = {name: AveragedModel(self.model, **own) for name, own in AVERAGES.items()}
        spent = dict.fromkeys((AS_IT_IS, *averages), 0.0)
        errors: dict[int, dict[str, float]] = {steps: {} for steps in lengths}
        begins: dict[int, list[tuple[str, int]]] = {}
        for (how, share), steps in product(SHARES.items(), lengths):
            begins.setdefault(round((1 - share) * steps), []).append((how, steps))
        while self.taken < max(lengths):
            spent[AS_IT_IS] += _seconds(self.to, self.taken + 1)
            for name, average in averages.items():
                spent[name] += _seconds(average.update_parameters, self.model)
            for how, steps in begins.get(self.taken, ()):
                errors[steps][how] = self.cooled(steps)
            if self.taken in lengths:
                looked = {AS_IT_IS: self.model, **averages}
                errors[self.taken] |= {how: self.error(model) for how, model in looked.items()}
        told = {str(steps): {how: float(f"{error:.5g}") for how, error in own.items()} for steps, own in errors.items()}
        times = {name: round(spent[name] / spent[AS_IT_IS], 5) for name in averages}
        return {"loss": errors[max(lengths)][COOLDOWN], "errors": told, "times": times}

    def cooled(self, steps: int) -> float:
        """The error if the training is ended after so many steps; it goes on from what was saved before."""
        taken, model, optimizer = copy.deepcopy((self.taken, self.model.state_dict(), self.optimizer.state_dict()))
        self.optimizer.cooldown(steps - taken)
        self.to(steps)
        error, self.taken = self.error(self.model), taken
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        return error

    def to(self, steps: int, schedule: Any = None) -> None:
        """Train until so many steps are taken."""
        for number in range(self.taken, steps):
            epoch, place = divmod(number, len(self.x) // BATCH)
            order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(10_000 * self.seed + epoch))
            batch = order[place * BATCH : (place + 1) * BATCH]
            self.optimizer.zero_grad()
            self.loss(self.model(self.x[batch]), self.y[batch]).backward()
            self.optimizer.step()
            if schedule is not None:
                schedule.step()
        self.taken = steps

    def error(self, model: nn.Module) -> float:
        """Mean relative L2 error of physical fields on the validation data."""
        with torch.no_grad():
            off = model(self.x_seen) * self.std + self.mean - self.y_seen
        error = float((off.flatten(1).norm(dim=1) / self.y_seen.flatten(1).norm(dim=1)).mean())
        if not math.isfinite(error):
            raise Diverged(f"The error is {error}.")
        return error


def _seconds(what: Callable[[Any], Any], argument: Any) -> float:
    """That a call takes."""
    before = time.perf_counter()
    what(argument)
    return time.perf_counter() - before
