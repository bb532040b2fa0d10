"""Untuned MuSOAP beside Adam that is tuned one setting after another: the rate, then weight decay, then a warm-up.

Settings are chosen by the validation error of the first seed, and test errors of all seeds are reported. On trajectories,
both are errors of rollouts, of different trajectories (``selection``). With ``shares``,
MuSOAP is also trained for parts of the steps, each with its own cosine, to find where it reaches the error of the tuned
Adam.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import Any

import numpy as np

from experiments.contenders import MUSOAP, STANDARD
from experiments.curves import rounded, searched
from experiments.figures import draw_samples, draw_times
from experiments.law_settings import CHOSEN_ON
from experiments.pages import dotted, mean_and_range, named, table
from experiments.records import loss_of, missing, test_errors
from experiments.tasks import TINY, Task
from experiments.training import STAGES, remembered, run_of, train
from neuralop_mup.lab.records import Run

#: Where the search of the rate begins.
START = 4e-3
DECAYS = (0.01, 0.1, 0.3)
_ROUNDS = 5  # of short trainings that are timed


@dataclass(frozen=True)
class Adam:
    """Settings of Adam, which is AdamW with weight decay."""

    lr: float
    decay: float = 0.0
    warm_up: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """Return the entries of a run."""
        others = {"lr": self.lr, **STANDARD}
        if self.warm_up:
            return {"optimizer": f"adamw-warm-{self.decay:g}", **others}
        return (
            {"optimizer": "adamw", "weight_decay": self.decay, **others} if self.decay else {"optimizer": "adam", **others}
        )

    def __str__(self) -> str:
        name = f"AdamW, decay {self.decay:g}" if self.decay else "Adam"
        return f"{name}{', warm-up' * self.warm_up}"


def paced(config: Mapping[str, Any]) -> dict[str, Any]:
    """Train the first run and the second one in turn, and return the median ratio of their times."""
    ratios = []
    for _ in range(_ROUNDS):
        first, second = (train(own)["seconds"] for own in config["config"])
        ratios.append(first / second)
    return {"loss": median(ratios)}


@dataclass(frozen=True)
class AgainstTuned:
    """The experiment.

    Attributes
    ----------
    about : str
    tasks : mapping
        Name → problem.
    shares : tuple of float
        Parts of the steps that MuSOAP is trained for; the whole first.
    seeds : tuple of int
    others : mapping of str to dict
        Name → settings of another optimizer or of another MuSOAP, trained for the whole number of steps.
    selection : mapping
        Arguments of the data with which Adam's settings are chosen, if they differ from those that are reported.
    """

    about: str
    tasks: Mapping[str, Task]
    shares: tuple[float, ...] = (1.0,)
    seeds: tuple[int, ...] = (0, 1, 2)
    others: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    selection: Mapping[str, Any] = field(default_factory=dict)

    notes = "Mean test errors of the seeds, and their range."
    metrics = ("test_loss", "train_loss", "seconds")

    def tiny(self) -> AgainstTuned:
        """Return one problem with a small model and short runs."""
        return replace(self, tasks={"burgers": TINY}, shares=(1.0,), seeds=(0,), others={}, selection={})

    @remembered
    def run(self, name: str, adam: Adam | None, seed: int, share: float = 1.0, other: str = "") -> Run:
        """Return a run of Adam or, without its settings, of another optimizer, by default of MuSOAP."""
        own = self.tasks[name]
        steps = round(own.steps * share / STAGES) * STAGES
        untuned = self.others[other] if other else MUSOAP
        config = own.run_config(untuned if adam is None else adam.settings, steps, seed=seed)
        who = (other or "MuSOAP") if adam is None else str(adam)
        return run_of(config, size=f"{name}: {who}", params={"lr": rounded(config["lr"]), "steps": steps}, seed=seed)

    @remembered
    def trial(self, name: str, adam: Adam) -> Run:
        """Return a run of the first seed by which settings of Adam are chosen."""
        run = self.run(name, adam, self.seeds[0])
        if not self.selection:
            return run
        config = {**run.config, "data": {**run.config["data"], **self.selection}}
        return run_of(config, **{**run.labels, "size": f"{run.labels['size']}, selection"})

    def pace(self, name: str) -> Run:
        """Return a run that measures the time of a step of MuSOAP over that of Adam."""
        share = 2 * STAGES / self.tasks[name].steps
        both = [self.run(name, adam, self.seeds[0], share) for adam in (None, Adam(START))]
        content, config = ({key: [getattr(run, key) for run in both]} for key in ("content", "config"))
        labels = {"size": f"{name}: time of a step", "params": {}, "seed": self.seeds[0]}
        return Run({"train": "pace", **content}, config, train=paced, **labels)

    def tuned(self, records: Any, name: str) -> tuple[Adam | None, list[Adam]]:
        """Return the best settings of Adam, or None and the settings that must be tried first."""

        def error(adam: Adam) -> float | None:
            return loss_of(records.get(self.trial(name, adam)))

        search = searched(lambda lr: error(Adam(lr)), START, spread=2.0)
        if search.missing:
            return None, [Adam(lr) for lr in search.missing]
        best = Adam(search.best)
        for setting, values in {"decay": DECAYS, "warm_up": (True,)}.items():
            errors = {adam: error(adam) for adam in (best, *(replace(best, **{setting: value}) for value in values))}
            if left := [adam for adam, found in errors.items() if found is None]:
                return None, left
            best = min(errors, key=errors.__getitem__)
        return best, []

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """Return the missing runs: MuSOAP, the search, and then other optimizers and further seeds."""
        parts, others = [(share,) for share in self.shares], [(1.0, other) for other in self.others]
        if len(parts) > 1:
            yield from missing(records, map(self.pace, self.tasks))
        first = (self.run(name, None, self.seeds[0], *own) for name, own in product(self.tasks, parts))
        yield from missing(records, first)
        best = {name: self.tuned(records, name) for name in self.tasks}
        for name, (_, left) in best.items():
            yield from missing(records, (self.trial(name, adam) for adam in left))
        if any(left for _, left in best.values()):
            return
        for seed in self.seeds:
            yield from missing(records, (self.run(name, adam, seed) for name, (adam, _) in best.items()))
            untuned = product(self.tasks, [*parts, *others])
            yield from missing(records, (self.run(name, None, seed, *own) for name, own in untuned))

    def errors(self, records: Any, name: str, *asked: Any) -> list[float]:
        """Return the test errors of the seeds that ended, infinite for those that failed; ``asked`` as for :meth:`run`."""
        adam, *rest = asked
        return test_errors(records, (self.run(name, adam, seed, *rest) for seed in self.seeds))

    def step_ratio(self, records: Any, name: str) -> float:
        """Return the time of a step of MuSOAP over that of Adam; NaN if it was not measured."""
        ratio = loss_of(records.get(self.pace(name)))
        return math.nan if ratio is None else ratio

    def share(self, records: Any, name: str, least: float) -> float:
        """Return the part of the steps after which the mean error is ``least``, by interpolation of the logarithms.

        Infinite if it is not reached; the smallest part that was trained if that reaches it.
        """
        means = {s: fmean(own) for s in sorted(self.shares) if (own := self.errors(records, name, None, s))}
        lowest = np.minimum.accumulate(np.log(list(means.values())))
        return math.exp(np.interp(-math.log(least), -lowest, np.log(list(means)), right=math.inf))

    def results(self, records: Any) -> dict[str, tuple[Adam, dict[str, list[float]]]]:
        """Return Adam's best settings and the test errors of all optimizers, tuned Adam first, for each finished problem."""
        found = {}
        for name in self.tasks:
            adam = self.tuned(records, name)[0]
            asked = {"": (adam,), "MuSOAP": (None,), **{other: (None, 1.0, other) for other in self.others}}
            errors = {who: self.errors(records, name, *own) for who, own in asked.items() if adam is not None}
            if all(errors.get(who) for who in ("", "MuSOAP")):
                found[name] = adam, {who: own for who, own in errors.items() if own}
        return found

    def numbers(self, records: Any) -> dict[str, str]:
        """Return the tables and the ratios that pages quote."""
        said, rows, timed, ratios, results = {}, [], {}, {}, self.results(records)
        for name, (adam, errors) in results.items():
            theirs = fmean(errors[""])
            for who in ("MuSOAP", *self.others):
                if who in errors:
                    ratios.setdefault(who, {})[name] = fmean(errors[who]) / theirs
            both = [mean_and_range(errors[who]) for who in ("MuSOAP", "")]
            rows.append([named(name), *both, f"{adam} at {adam.lr:g}", f"{ratios['MuSOAP'][name]:.2f}"])
            if len(self.shares) > 1:
                share, step = self.share(records, name, theirs), self.step_ratio(records, name)
                timed[name] = share, step, share * step
        said["table"] = table(["problem", "untuned `MuSOAP`", "tuned Adam", "its settings", "ratio"], rows)
        means = []
        for who, own in ratios.items():
            trained = list(filter(math.isfinite, own.values())) or [math.inf]
            mean, most = f"{geometric_mean(trained):.2f}", f"{max(own.values()):.2f}"
            said |= {f"{dotted(who)}.mean": mean, f"{dotted(who)}.most": most}
            means.append([who, str(len(own)), mean, most])
        if self.others:
            said["others"] = table(["untuned", "problems", "mean ratio", "largest"], means)
        if timed:
            heads = ["problem", "share of the steps", "time per step, relative", "share of the time"]
            rows = [[named(name), *(f"{value:.2f}" for value in own)] for name, own in timed.items()]
            said["shares"] = table(heads, rows)
            said["least"], said["most"] = (f"{end(own[-1] for own in timed.values()):.2f}" for end in (min, max))
        if held_out := [name for name in timed if self.tasks[name].config["problem"] not in CHOSEN_ON]:
            steps, _, times = (median(values) for values in zip(*(timed[name] for name in held_out), strict=True))
            seeds = min(len(results[name][1]["MuSOAP"]) for name in held_out)
            said |= {"held-out": str(len(held_out)), "held-out.steps": f"{steps:.2f}", "held-out.time": f"{times:.2f}"}
            said["seeds"] = str(seeds)
        return said

    def draw(self, records: Any, path: Path) -> None:
        """Draw errors over the time of training or, without parts of the steps, over the number of samples if it varies."""
        done = self.results(records)
        if len(self.shares) > 1:
            times = {}
            for name, (_, errors) in done.items():
                step, least = self.step_ratio(records, name), fmean(errors[""])
                found = {s: self.errors(records, name, None, s) for s in sorted(self.shares)}
                times[name] = {s: (s * step, fmean(own) / least) for s, own in found.items() if own}
            draw_times(times, path)
            return
        curves = {}
        for name, (_, errors) in done.items():
            config = self.tasks[name].config
            lines = curves.setdefault(config["problem"], {"MuSOAP, untuned": {}, "Adam or AdamW, tuned": {}})
            for points, who in zip(lines.values(), ("MuSOAP", ""), strict=True):
                points[config["data"].get("n_train")] = errors[who]
        if any(len(points) > 1 for lines in curves.values() for points in lines.values()):
            draw_samples(curves, path)

    def table(self, records: Any) -> str:
        """Return the page."""
        tables = [text for text in self.numbers(records).values() if "\n" in text]
        return "\n".join([f"# {self.about[0].upper()}{self.about[1:]}", "", self.notes, *tables])
