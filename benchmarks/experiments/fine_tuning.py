"""Which learning rate fine-tuning wants: trained on one equation, an FNO goes on with another one of its kind.

Every other setting is the default, and rates fall to zero on a cosine. Rates of the kernels lie a factor of 2 apart around
that of the rule, until the best has neighbours on both sides; AdamW's goes with them (``aux_lr`` = 0.004 · lr / 0.03). Data
stays normalised as the first training had it. While it trains the error on the validation data is looked at after steps 1,
2, 3, 4, 6, 8, … and 24 times evenly, so that the highest is known.

Hypotheses, written down before measuring: the law holds with an offset, as if steps of the first training were behind;
fine-tuning wants a constant share of the fresh rate; or that below a bound. What was found instead at 30 and 300 steps: the
fresh rate times the relative error at the start, as steps that are averaged want a rate that is the distance that is left
over the root of their number. At 1,000 and 3,000 steps that is too low: there the best rate hardly follows the error, but
one above a quarter of it throws the model away. So the rule is the offset, raised by the error where steps are few, and
bounded by a quarter of the error. It was chosen on eight pairs. Three more were looked at when it was, and three came after.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import Any

import numpy as np
import torch
from neuralop.losses import LpLoss
from torch import nn

import neuralop_mup as nm
from experiments.curves import rounded, searched
from experiments.kept import loss_of, metrics_of, missing
from experiments.pages import percent, percents, table
from neuralop_mup.core.rules import RULE_VERSION
from neuralop_mup.errors import Diverged
from neuralop_mup.lab.problems import ProblemData
from neuralop_mup.lab.records import Run
from neuralop_mup.lab.training import FNOs
from neuralop_mup.optim.musoap.optimizer import ADAMW_LR, LR, default_lr
from neuralop_mup.optim.schedule import trained_lr
from problems import get_problem

#: Steps that count as taken before: the rate of so many more is the middle of each grid.
BEHIND = 3000
#: What no rate that follows from an error is above.
MOST = 0.06
#: Of the first training.
BEFORE_STEPS = 600
BATCH = 10
#: Raise it whenever the same configuration gives other numbers.
VERSION = 1

_1D = {"n_train": 300, "n_val": 50, "n_test": 1, "grid": 64}
_2D = {"n_train": 200, "n_val": 40, "n_test": 1, "grid": 16}
_FLOW = {"n_train": 20, "n_val": 2, "n_test": 1, "states": 20, "grid": 16}
_KDV, _IN_TIME = "korteweg-de-vries", {"n_train": 40, "n_val": 2, "n_test": 1, "states": 30, "grid": 64}


@dataclass(frozen=True)
class Pair:
    """A problem with arguments of its data, and which of them change from before to after."""

    problem: str
    data: Mapping[str, Any]
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    model: Mapping[str, Any]

    def problems(self) -> list[Any]:
        """Before and after."""
        return [get_problem(self.problem, **{**self.data, **changed}) for changed in (self.before, self.after)]


_FOR_BURGERS = {"n_modes": (16,), "hidden_channels": 16}
_FOR_WAVES = {"n_modes": (24,), "hidden_channels": 16}
_IN_2D = {"n_modes": (8, 8), "hidden_channels": 12}
CHOSEN_ON = {
    "Burgers, viscosity 0.02 to 0.018": Pair("burgers", _1D, {"viscosity": 0.02}, {"viscosity": 0.018}, _FOR_BURGERS),
    "Burgers, viscosity 0.02 to 0.01": Pair("burgers", _1D, {"viscosity": 0.02}, {"viscosity": 0.01}, _FOR_BURGERS),
    "Korteweg–de Vries, time 0.2 to 0.21": Pair(_KDV, _1D, {"time": 0.2}, {"time": 0.21}, _FOR_WAVES),
    "Korteweg–de Vries, dispersion 0.02 to 0.025": Pair(
        _KDV, {**_1D, "time": 0.2}, {"dispersion": 0.02}, {"dispersion": 0.025}, _FOR_WAVES
    ),
    "Burgers, time 1 to 1.5": Pair("burgers", {**_1D, "viscosity": 0.02}, {"time": 1.0}, {"time": 1.5}, _FOR_BURGERS),
    "Allen–Cahn, width 0.06 to 0.05": Pair("allen-cahn", _2D, {"width": 0.06}, {"width": 0.05}, _IN_2D),
    "Burgers, 32 to 64 points": Pair("burgers", {**_1D, "viscosity": 0.01}, {"grid": 32}, {"grid": 64}, _FOR_BURGERS),
    "trajectories of waves, step 0.05 to 0.06": Pair(
        f"{_KDV}-in-time", _IN_TIME, {"time": 0.05}, {"time": 0.06}, _FOR_WAVES
    ),
}
#: The first three chose nothing but were seen before the rule; the others came after it.
REPORTED_ON = {
    "Gray–Scott, feed 0.04 to 0.036": Pair("gray-scott", _2D, {"feed": 0.04}, {"feed": 0.036}, _IN_2D),
    "Darcy, 11 to 16 points": Pair("darcy", _2D, {"grid": 11}, {"grid": 16}, _IN_2D),
    "Korteweg–de Vries, time 0.1 to 0.15": Pair(_KDV, _1D, {"time": 0.1}, {"time": 0.15}, _FOR_WAVES),
    "trajectories of a flow, forcing 4 to 3": Pair(
        "navier-stokes-in-time", _FLOW, {"forcing_amplitude": 4.0}, {"forcing_amplitude": 3.0}, _IN_2D
    ),
    "Allen–Cahn, time 4 to 6": Pair("allen-cahn", _2D, {"time": 4.0}, {"time": 6.0}, _IN_2D),
    "Gray–Scott, kill 0.06 to 0.061": Pair("gray-scott", _2D, {"kill": 0.06}, {"kill": 0.061}, _IN_2D),
}
PAIRS = REPORTED_ON | CHOSEN_ON

#: Rule → learning rate of so many steps, where the relative error is so much at the start.
RULES: dict[str, Callable[[int, float], float]] = {
    "that of MuSOAP": trained_lr,
    "the fresh rate times the error at the start, at most 0.06": lambda steps, start: min(MOST, default_lr(steps) * start),
    "as if 3,000 steps were behind": lambda steps, start: default_lr(steps + BEHIND),
    "as if 1,000 steps were behind": lambda steps, start: default_lr(steps + 1000),
    "a quarter of the fresh rate": lambda steps, start: default_lr(steps) / 4,
    "the fresh rate, at most 0.015": lambda steps, start: min(0.015, default_lr(steps)),
    "the fresh rate": lambda steps, start: default_lr(steps),
}
THE_RULE = next(iter(RULES))


@dataclass(frozen=True)
class FineTuning:
    """Eight pairs that the rule was chosen on, and six others."""

    pairs: Mapping[str, Pair] = None  # type: ignore[assignment]  # a mapping is no default
    lengths: tuple[int, ...] = (30, 300, 1000, 3000)
    seed: int = 0

    about = "which learning rate fine-tuning wants, and how far it throws a trained model"
    metrics = ("before", "start", "highest", "seconds")

    def __post_init__(self) -> None:
        object.__setattr__(self, "pairs", PAIRS if self.pairs is None else self.pairs)

    def tiny(self) -> FineTuning:
        """One small pair."""
        name, pair = next(iter(self.pairs.items()))
        small = replace(pair, data={**pair.data, "n_train": 20, "n_val": 10}, model={**pair.model, "hidden_channels": 8})
        return replace(self, pairs={name: small}, lengths=(30,))

    # What is wanted

    def run(self, name: str, steps: int, lr: float) -> Run:
        """A fine-tuning, with a new state of the optimizer."""
        pair = self.pairs[name]
        own = {"aux_lr": ADAMW_LR * lr / LR, "carry": False}  # kept runs are known by both
        config = {"pair": vars(pair), "steps": steps, "lr": lr, **own, "seed": self.seed}
        data = [problem.content() for problem in pair.problems()]
        settings = {"before_steps": BEFORE_STEPS, "batch_size": BATCH, "data": data}
        version = {"fine-tuning": VERSION, "rules": RULE_VERSION}
        content = {**config, **settings, "train": "fine-tuning", "version": version}
        return Run(content, config, train=train, size=f"{name}, {steps} steps", params={"lr": lr}, seed=self.seed)

    def search(self, records: Any, name: str, steps: int) -> tuple[dict[float, float], list[Run]]:
        """Rate → error as far as the search is done, and the runs that it wants next."""
        found, left = searched(lambda lr: loss_of(records.get(self.run(name, steps, lr))), default_lr(steps + BEHIND))
        return found, [self.run(name, steps, lr) for lr in left]

    def middle(self, name: str, steps: int) -> Run:
        """At the rate of 3,000 steps more."""
        return self.run(name, steps, rounded(default_lr(steps + BEHIND)))

    def ruled(self, records: Any, name: str, steps: int) -> Run | None:
        """At the rule's rate, once the error at the start is known."""
        known = metrics_of(records, {"it": self.middle(name, steps)})
        return self.run(name, steps, rounded(RULES[THE_RULE](steps, known["it"]["start"]))) if known else None

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """The runs that are missing; a length begins once the one before is done, so that the short ones answer early."""
        for steps in self.lengths:
            left = [run for name in self.pairs for run in self.search(records, name, steps)[1]]
            yield from left
            yield from missing(records, filter(None, (self.ruled(records, name, steps) for name in self.pairs)))
            if left:
                return

    # What is done

    def done(self, records: Any) -> list[Done]:
        """Pairs and lengths of which the search is done, and the run at the rule's rate."""
        found = []
        for steps in self.lengths:
            for name in self.pairs:
                errors, left = self.search(records, name, steps)
                ruled = self.ruled(records, name, steps)
                own = metrics_of(records, {"it": ruled}).get("it") if ruled is not None else None
                if own is not None and not left:
                    lr = ruled.config["lr"]
                    found.append(Done(name, steps, lr, {**errors, lr: own["loss"]}, own))
        return found

    def table(self, records: Any) -> str:
        """What is done so far."""
        said = (
            "# Fine-tuning\n\nWhat a rule loses, over the error of the best of a grid of rates: median and range over pairs "
            "and lengths. Beyond the grid a rate is taken for its last one, so that it loses at least so much. The "
            "pairs are those on which rules were chosen, and others.\n"
        )
        numbers = self.numbers(records)
        return "\n\n".join([said, *(numbers[part] for part in ("rules", "lengths", "pairs") if part in numbers)]) + "\n"

    def numbers(self, records: Any) -> dict[str, str]:
        """What pages quote."""
        done = self.done(records)
        if not done:
            return {}
        said, rows = {"searches": str(len(done))}, []
        for name, rule in RULES.items():
            lost = {
                part: [
                    own.regret(rule(own.steps, own.measured["start"])) for own in done if (own.name in CHOSEN_ON) == chose
                ]
                for part, chose in (("chosen", True), ("elsewhere", False))
            }
            rows.append([name, *(percents(own) if own else "–" for own in lost.values())])
            if name == THE_RULE:
                said |= {f"{part}.median": percent(median(own)) for part, own in lost.items() if own}
                said |= {f"{part}.most": percent(max(own)) for part, own in lost.items() if own}
        said["rules"] = "\n".join(table(["rule", "where it was chosen", "elsewhere"], rows))
        heads = [
            "pair",
            "steps",
            "before",
            "at the start",
            "best",
            "its rate",
            "the rule's",
            "it loses",
            "highest, of the start",
        ]
        said["pairs"] = "\n".join(table(heads, [own.row() for own in done]))
        said["lengths"] = "\n".join(table(["steps", "pairs", "error above the best"], list(_by_length(done))))
        said["median"] = percent(median(own.regret(own.lr) for own in done))
        said["highest"] = f"{max(own.highest for own in done):.2f}"
        return said


@dataclass(frozen=True)
class Done:
    """A pair and a length: the rule's rate, the errors of all rates, and what was measured at the rule's."""

    name: str
    steps: int
    lr: float
    errors: Mapping[float, float]
    measured: Mapping[str, Any]

    @property
    def highest(self) -> float:
        """The highest error over that at the start, at the rule's rate."""
        return self.measured["highest"] / self.measured["start"]

    def regret(self, lr: float) -> float:
        """What a rate loses; errors between two rates are read off the line between them, in logarithms."""
        x, y = np.log(sorted(self.errors)), np.log([self.errors[lr] for lr in sorted(self.errors)])
        return math.expm1(float(np.interp(math.log(lr), x, y)) - y.min())

    def row(self) -> list[str]:
        """Of the table."""
        best = min(self.errors, key=self.errors.__getitem__)
        errors = [f"{error:.4f}" for error in (self.measured["before"], self.measured["start"], self.errors[best])]
        rates = [f"{lr:.3g}" for lr in (best, self.lr)]
        return [self.name, str(self.steps), *errors, *rates, percent(self.regret(self.lr)), f"{self.highest:.2f}"]


def _by_length(done: list[Done]) -> Iterator[list[str]]:
    """What the rule loses in trainings of each length."""
    for steps in dict.fromkeys(own.steps for own in done):
        lost = [own.regret(own.lr) for own in done if own.steps == steps]
        yield [str(steps), str(len(lost)), percents(lost)]


# A run


def train(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fine-tune a trained model: its error on the validation data before, at the start, at the end and at the highest."""
    torch.set_num_threads(1)
    began, pair = time.perf_counter(), Pair(**config["pair"])
    before, after = pair.problems()
    size = {**pair.model, "n_modes": tuple(pair.model["n_modes"])}
    first, units, error_before = _trained(before, tuple(size.items()), config["seed"])
    data = after.load()
    model = nm.parametrize(copy.deepcopy(first), init=False)
    optimizer = nm.MuSOAP(model, lr=config["lr"], adamw_lr=config["aux_lr"])
    start = _error(model, data, units)
    errors = _train(model, optimizer, data, units, config["steps"], config["seed"] + 100)
    spent = time.perf_counter() - began
    return {"loss": errors[-1], "before": error_before, "start": start, "highest": max(errors), "seconds": spent}


@cache
def _trained(problem: Any, size: tuple, seed: int) -> tuple[nn.Module, list, float]:
    """A model without its plan, the units of its data, and its error."""
    data = problem.load()
    units = [(values.mean(), values.std()) for values in data.train]
    torch.manual_seed(seed)
    model = nm.parametrize(FNOs(problem.in_channels, problem.out_channels, problem.n_dim)(n_layers=4, **dict(size)))
    optimizer = nm.MuSOAP(model, steps=BEFORE_STEPS)
    errors = _train(model, optimizer, data, units, BEFORE_STEPS, seed)
    return nm.unparametrize(model), units, errors[-1]


def _train(model: nn.Module, optimizer: nm.MuSOAP, data: ProblemData, units: list, steps: int, seed: int) -> list[float]:
    """Train on a cosine to zero; errors on the validation data at many of the steps and at the last."""
    looked = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, *(round(steps * i / 24) for i in range(1, 25))}
    x, y = ((values - mean) / std for values, (mean, std) in zip(data.train, units, strict=True))
    loss = LpLoss(d=x.ndim - 2, p=2)
    order, generator = torch.empty(0, dtype=torch.long), torch.Generator().manual_seed(seed)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    errors = []
    for step in range(1, steps + 1):
        if len(order) < BATCH:
            order = torch.randperm(len(x), generator=generator)
        batch, order = order[:BATCH], order[BATCH:]
        optimizer.zero_grad()
        loss(model(x[batch]), y[batch]).backward()
        optimizer.step()
        schedule.step()
        if step in looked:
            errors.append(_error(model, data, units))
            if not math.isfinite(errors[-1]):
                raise Diverged(f"The error is {errors[-1]} at step {step}.")
    return errors


def _error(model: nn.Module, data: ProblemData, units: list) -> float:
    """Mean relative L2 error of physical fields."""
    (x, y), ((x_mean, x_std), (y_mean, y_std)) = data.val, units
    with torch.no_grad():
        off = model((x - x_mean) / x_std) * y_std + y_mean - y
    return float((off.flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)).mean())
