"""Trainings whose length is not known: one that is ended at several lengths by cooldowns, over those that knew theirs.

One run of ``MuSOAP(model)`` is saved at 7/10 of each length, ended there by ``cooldown``, loaded and goes on. It is compared
with ``MuSOAP(model, steps=…)`` under a cosine of each length, from the same start and on the same samples. Its height and
the cooldown's shape and share were chosen on three of the problems, and nothing on the others. For a look in between without
a cooldown averages of the weights go along, of which the error and the time are measured.

Hypotheses, written down before measuring: errors are at most 1.05 times those of the cosines in the median, and 1.15 at
worst. An average comes within a tenth of a cooldown where its window grows with the training; one of 1,000 steps is useless
in short trainings, one of 100 steps leaves more than another tenth in long ones; each takes a few percent of the time.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import geometric_mean, median
from typing import Any

import torch
from neuralop.losses import LpLoss
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import neuralop_mup as nm
from experiments.kept import loss_of, metrics_of, missing
from experiments.pages import NAMES, dotted, percents, table
from experiments.training import remembered
from neuralop_mup.core.rules import RULE_VERSION
from neuralop_mup.errors import Diverged
from neuralop_mup.lab.outcome import is_complete
from neuralop_mup.lab.records import Run
from neuralop_mup.lab.training import FNOs
from neuralop_mup.optim.musoap.length import progress_lr, usual_lr
from problems import get_problem

#: Of a training, its cooldown.
SHARE = 0.3
BATCH = 10
#: Raise it whenever the same configuration gives other numbers.
VERSION = 1

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
_TOLD = {**NAMES, _KDV_IN_TIME: "Korteweg–de Vries, a step in time"}

COOLDOWN, AS_IT_IS = "a cooldown", "the weights as they are"


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

    problems: tuple[str, ...] = (*CHOSEN_ON, *REPORTED_ON)
    lengths: tuple[int, ...] = (250, 1000, 4000)
    seeds: tuple[int, ...] = (0, 1, 2)
    small: bool = False

    about = "what a training loses whose length was not known, and what looking in between without a cooldown costs"
    metrics = ("errors", "times", "seconds")

    def tiny(self) -> UnknownLength:
        """One problem of a few samples."""
        return replace(self, problems=("burgers",), lengths=(10, 20), seeds=(0,), small=True)

    # What is wanted

    def cosine(self, name: str, steps: int, seed: int) -> Run:
        """A training that knew its length."""
        return self._run(name, seed, steps)

    def stopped(self, name: str, seed: int) -> Run:
        """One that is ended at all lengths."""
        return self._run(name, seed, None)

    @remembered
    def _run(self, name: str, seed: int, steps: int | None) -> Run:
        data, model = {**CHOSEN_ON, **REPORTED_ON}[name]
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
            "share": SHARE,
            "rates": [progress_lr(0), progress_lr(1000)] if steps is None else usual_lr(steps),
            "version": {"unknown-length": VERSION, "rules": RULE_VERSION},
        }
        size = f"{name}, {'length not known' if steps is None else f'{steps} steps'}"
        return Run(content, config, train=train, size=size, params={}, seed=seed)

    def wanted(self, records: Any) -> Iterator[Run]:
        """The runs that are missing: the short lengths and one seed first."""
        for seed in self.seeds:
            yield from missing(records, (self.cosine(name, n, seed) for n in self.lengths[:-1] for name in self.problems))
            yield from missing(records, (self.stopped(name, seed) for name in self.problems))
            yield from missing(records, (self.cosine(name, self.lengths[-1], seed) for name in self.problems))

    # What is done

    def over(self, records: Any, how: str) -> dict[tuple[str, int], list[float]]:
        """Problem and length → errors over those of the cosine, a seed each; infinite where the one run did not train."""
        found = {}
        for name in self.problems:
            for steps in self.lengths:
                own = [self._ratio(records, name, steps, seed, how) for seed in self.seeds]
                if done := [ratio for ratio in own if ratio is not None]:
                    found[name, steps] = done
        return found

    def _ratio(self, records: Any, name: str, steps: int, seed: int, how: str) -> float | None:
        record, cosine = records.get(self.stopped(name, seed)), loss_of(records.get(self.cosine(name, steps, seed)))
        if record is None or cosine is None:
            return None
        return record["metrics"]["errors"][str(steps)][how] / cosine if is_complete(record) else math.inf

    def table(self, records: Any) -> str:
        """What is done so far."""
        said = (
            "# Trainings whose length is not known\n\nOne run is ended at each length by a cooldown of three tenths of it, "
            "and goes on as if it had not been. Its error over that of a cosine of known length: geometric means over "
            f"seeds, of which there are {len(self.seeds)} where no other number stands in brackets."
        )
        numbers = self.numbers(records)
        if not numbers:
            return f"{said}\n\nNothing is done.\n"
        whole = (
            f"Median {numbers['median']} and most {numbers['most']}; of single seeds {numbers['single.most']} at most. "
            "Asked were 1.05 and 1.15."
        )
        looks = (
            "Looking in between: the error over that of a cosine of this length, median and range over the problems, and "
            "the time that an average takes at each step, over that of the step."
        )
        return "\n".join([said, numbers["ratios"], "", whole, "", looks, numbers["looks"], ""])

    def numbers(self, records: Any) -> dict[str, str]:
        """What pages quote."""
        over = self.over(records, COOLDOWN)
        if not over:
            return {}
        means = {cell: geometric_mean(own) for cell, own in over.items()}
        said = {
            "median": f"{median(means.values()):.2f}",
            "most": f"{max(means.values()):.2f}",
            "single.most": f"{max(map(max, over.values())):.2f}",
            "cells": str(len(means)),
            "of": str(len(self.problems) * len(self.lengths)),
            "seeds": str(min(map(len, over.values()))),
        }
        for part, chosen in (("chosen", CHOSEN_ON), ("others", REPORTED_ON)):
            if own := [mean for (name, _), mean in means.items() if name in chosen]:
                said |= {f"{part}.median": f"{median(own):.2f}", f"{part}.most": f"{max(own):.2f}"}
        rows = []
        for name in self.problems:
            cells = [self._cell(over.get((name, steps), ())) for steps in self.lengths]
            rows.append([_TOLD[name], "chosen on" if name in CHOSEN_ON else "", *cells])
        heads = [f"{steps:,} steps" for steps in self.lengths]
        said["ratios"] = "\n".join(table(["problem", "", *heads], rows))
        return {**said, **self._looks(records, heads)}

    def _cell(self, ratios: Any) -> str:
        if not ratios:
            return "–"
        return f"{geometric_mean(ratios):.2f}{'' if len(ratios) == len(self.seeds) else f' ({len(ratios)})'}"

    def _looks(self, records: Any, heads: list[str]) -> dict[str, str]:
        every = {(name, seed): self.stopped(name, seed) for name in self.problems for seed in self.seeds}
        times = [own["times"] for own in metrics_of(records, every).values()]
        said, rows = {}, []
        for how in (COOLDOWN, *AVERAGES, AS_IT_IS):
            over, cells = self.over(records, how), []
            for steps in self.lengths:
                means = [geometric_mean(own) for (_, at), own in over.items() if at == steps]
                cells.append(f"{median(means):.2f} ({min(means):.2f} to {max(means):.2f})" if means else "–")
                said |= {f"{dotted(how)}.{steps}": f"{median(means):.2f}"} if means else {}
            took = [own[how] for own in times if how in own]
            said |= {f"{dotted(how)}.time": percents(took)} if took else {}
            rows.append([how, *cells, percents(took) if took else "–"])
        said["looks"] = "\n".join(table(["after", *heads, "time"], rows))
        return said


# A run


def train(config: Mapping[str, Any]) -> dict[str, Any]:
    """Train for the steps that were known, or end one training at all lengths."""
    torch.set_num_threads(1)
    began, training = time.perf_counter(), _Training(config)
    if config["steps"] is None:
        measured = training.at_all(config["lengths"])
    else:
        measured = {"loss": training.with_cosine(config["steps"])}
    return {**measured, "seconds": time.perf_counter() - began}


class _Training:
    """A model, its optimizer and its data; which samples a step has follows from its number."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        problem = get_problem(config["problem"], **config["data"])
        data, size = problem.load(), config["model"]
        over = (0, *range(2, 2 + problem.n_dim))
        (x, y), (x_seen, self.y_seen) = data.train, data.val
        mean, std = x.mean(over, keepdim=True), x.std(over, keepdim=True)
        self.x, self.x_seen = (x - mean) / std, (x_seen - mean) / std
        self.mean, self.std = y.mean(over, keepdim=True), y.std(over, keepdim=True)
        self.y = (y - self.mean) / self.std
        self.seed, self.loss = config["seed"], LpLoss(d=problem.n_dim, p=2)
        torch.manual_seed(self.seed)
        build = FNOs(problem.in_channels, problem.out_channels, problem.n_dim)
        modes = tuple(size["n_modes"])
        model = build(n_layers=4, n_modes=modes, hidden_channels=size["hidden_channels"])
        self.model = nm.parametrize(model)
        self.optimizer = nm.MuSOAP(self.model, steps=config["steps"])

    def with_cosine(self, steps: int) -> float:
        """The error after so many steps, known from the start."""
        schedule = CosineAnnealingLR(self.optimizer, steps)
        for number in range(steps):
            self.step(number)
            schedule.step()
        return self.error(self.model)

    def at_all(self, lengths: tuple[int, ...]) -> dict[str, Any]:
        """Errors at each length, after a cooldown and without, and the times of averages over that of the steps."""
        averages = {name: AveragedModel(self.model, **own) for name, own in AVERAGES.items()}
        errors: dict[int, dict[str, float]] = {steps: {} for steps in lengths}
        begins = {round((1 - SHARE) * steps): steps for steps in lengths}
        stepping, averaging = 0.0, dict.fromkeys(averages, 0.0)
        for taken in range(1, max(lengths) + 1):
            before = time.perf_counter()
            self.step(taken - 1)
            stepping += time.perf_counter() - before
            for name, average in averages.items():
                before = time.perf_counter()
                average.update_parameters(self.model)
                averaging[name] += time.perf_counter() - before
            if taken in begins:
                errors[begins[taken]][COOLDOWN] = self.cooled(taken, begins[taken])
            if taken in lengths:
                looked = {AS_IT_IS: self.model, **averages}
                errors[taken] |= {how: self.error(model) for how, model in looked.items()}
        rounded = {str(steps): {how: float(f"{error:.5g}") for how, error in own.items()} for steps, own in errors.items()}
        times = {name: round(seconds / stepping, 5) for name, seconds in averaging.items()}
        return {"loss": errors[max(lengths)][COOLDOWN], "errors": rounded, "times": times}

    def cooled(self, taken: int, steps: int) -> float:
        """The error if the training is ended now; it goes on from what was saved before."""
        model, optimizer = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))
        self.optimizer.cooldown(steps - taken)
        for number in range(taken, steps):
            self.step(number)
        error = self.error(self.model)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        return error

    def step(self, number: int) -> None:
        """One of the training."""
        epoch, place = divmod(number, len(self.x) // BATCH)
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(10_000 * self.seed + epoch))
        batch = order[place * BATCH : (place + 1) * BATCH]
        self.optimizer.zero_grad()
        self.loss(self.model(self.x[batch]), self.y[batch]).backward()
        self.optimizer.step()

    def error(self, model: nn.Module) -> float:
        """Mean relative L2 error of physical fields on the validation data."""
        with torch.no_grad():
            off = model(self.x_seen) * self.std + self.mean - self.y_seen
        error = float((off.flatten(1).norm(dim=1) / self.y_seen.flatten(1).norm(dim=1)).mean())
        if not math.isfinite(error):
            raise Diverged(f"The error is {error}.")
        return error
