"""Compare optimizers: the package's own and others, each with a tuned learning rate, and MuSOAP with its default rate.

Each learning rate is searched with one seed (:func:`experiments.curves.searched`) and selected by the validation error. On
APEBench it is selected by the reported rollout error, which favours the tuned optimizers. The selected rate and the default
rate are trained with all seeds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, NamedTuple

from experiments.contenders import CONTENDERS
from experiments.curves import Search, rounded, searched
from experiments.experiment import Experiment
from experiments.figures import draw_comparison
from experiments.pages import dotted, named, student_interval, table
from experiments.records import loss_of, missing, test_errors
from experiments.tasks import TINY, Task
from experiments.training import STAGES, remembered, run_of
from neuralop_mup.lab.records import Run
from neuralop_mup.optim.musoap.optimizer import default_lr

#: Name of a contender with the default learning rate → contender.
UNTUNED = {"MuSOAP, untuned": "MuSOAP", "MuSOAP, untuned, no weight decay": "MuSOAP, no weight decay"}
#: The baseline of a problem is the best of these.
BASELINES = ("Adam", *(name for name in CONTENDERS if name.startswith("AdamW")))
BEST_BASELINE = "the best of Adam and AdamW"
#: Number of steps of the longer baseline, relative to the others. It takes about as much time as MuSOAP.
MORE_STEPS = 1.4
LONGER_BASELINE = f"{BEST_BASELINE}, up to {MORE_STEPS:g} times the steps"
#: Variants of Adam that are only tuned on the problems of this repository.
VARIANTS = ("Adam, eps 1e-6", "Adam, beta2 0.95")
#: Contenders that are tuned everywhere.
TUNED = tuple(name for name in CONTENDERS if name not in ("MuSOAP, no weight decay", *VARIANTS))
APEBENCH_FNO = "APEBench's FNO"

#: Columns of the tables on pages. The report has a table with all contenders.
_COLUMNS = (APEBENCH_FNO, "MuSOAP, untuned", "MuSOAP", BEST_BASELINE, "Adam", "AdamW", "stock SOAP")
#: Rows of the table of ratios.
_RIVALS = (APEBENCH_FNO, BEST_BASELINE, LONGER_BASELINE, *BASELINES, "stock SOAP")
#: Name of a number → contender in the denominator.
_DENOMINATORS = {
    "theirs": APEBENCH_FNO,
    "Adam": "Adam",
    "AdamW": "AdamW",
    "best": BEST_BASELINE,
    "longer": LONGER_BASELINE,
    "SOAP": "stock SOAP",
    "tuned": "MuSOAP",
    "none": "MuSOAP, untuned, no weight decay",
}


class Result(NamedTuple):
    """Learning rate of a contender on a problem, with test errors of its seeds."""

    lr: float
    errors: list[float]


#: Contender → problem → result.
Results = Mapping[str, Mapping[str, Result]]


@dataclass(frozen=True)
class Comparison(Experiment):
    """Compare optimizers on several problems.

    Attributes
    ----------
    about : str
    tasks : mapping
        Name → problem, model and training length.
    contenders : tuple of str
        Keys of :data:`CONTENDERS` with a tuned learning rate.
    seeds : tuple of int
    one_seed : tuple of str
        Contenders that are only trained with the first seed.
    only_on : mapping of str to tuple of str, optional
        Contender → problems where it is tuned; by default all.
    search_from : mapping of str to float or str
        Contender → learning rate near its best one, or another contender with a similar best rate. The search then begins
        there, with a factor of 2 to either side, and needs fewer runs.
    longer : bool
        Whether the best baseline is also trained with more steps.
    untuned : mapping of str to str
        Name of a contender with the default learning rate → contender.
    groups : mapping of str to tuple of str
        Name of a group in numbers → problems.
    apebench_runs : Path, optional
        File with lines of runs by APEBench's own code: ``size`` (the problem), ``loss`` and ``seconds``.
    """

    about: str
    tasks: Mapping[str, Task]
    contenders: tuple[str, ...] = (*TUNED, *VARIANTS)
    seeds: tuple[int, ...] = (0, 1, 2)
    one_seed: tuple[str, ...] = ()
    only_on: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    search_from: Mapping[str, float | str] = field(default_factory=dict)
    longer: bool = False
    untuned: Mapping[str, str] = field(default_factory=lambda: UNTUNED)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    apebench_runs: Path | None = None

    notes = "Errors are medians over the seeds, with their range and the learning rate. Ratios are those of medians."
    metrics = ("validation_error", "test_loss", "train_loss", "seconds")

    def tiny(self) -> Comparison:
        """Return a comparison of two small models on one problem."""
        small = {"tasks": {"burgers": TINY}, "contenders": ("MuSOAP", "stock SOAP"), "apebench_runs": None}
        return replace(self, seeds=(0,), **small)

    # Runs

    @remembered
    def run(self, name: str, contender: str, lr: float, seed: int, times: float = 1.0) -> Run:
        """Return a run of a contender on a problem, with a multiple of its number of steps."""
        own = self.tasks[name]
        config = own.run_config(CONTENDERS[contender], round(own.steps * times / STAGES) * STAGES, lr=lr, seed=seed)
        suffix = "" if times == 1.0 else f", {times:g} times the steps"
        return run_of(config, size=f"{name}, {contender}{suffix}", params={"lr": lr}, seed=seed)

    @property
    def tunings(self) -> list[tuple[str, str]]:
        """Return the contenders and problems of all searches."""
        return [pair for pair in product(self.contenders, self.tasks) if pair[1] in self.only_on.get(pair[0], self.tasks)]

    def start(self, name: str, contender: str) -> float:
        """Return the initial learning rate of a search."""
        return rounded(CONTENDERS[contender].get("lr") or default_lr(self.tasks[name].steps))

    def searched(self, records: Any, name: str, contender: str) -> Search:
        """Return the state of the search with the first seed. It may begin at the result of another one."""
        near = self.search_from.get(contender)
        start = self.searched(records, name, near).best if isinstance(near, str) else near or self.start(name, contender)

        def error(lr: float) -> float | None:
            return loss_of(records.get(self.run(name, contender, lr, self.seeds[0])))

        return searched(error, start, spread=2.0 if near else 4.0)

    def selected(self, records: Any, name: str, contender: str) -> tuple[str, float, float] | None:
        """Return the key of :data:`CONTENDERS`, the learning rate and the multiple of steps that a result uses.

        Return None while a search is not finished.
        """
        if contender in self.untuned:
            return self.untuned[contender], self.start(name, self.untuned[contender]), 1.0
        if contender in (BEST_BASELINE, LONGER_BASELINE):
            best = self.best_baseline(records, name)
            found = best and self.selected(records, name, best)
            return found and (*found[:2], MORE_STEPS if contender == LONGER_BASELINE else 1.0)
        search = self.searched(records, name, contender)
        return (contender, search.best, 1.0) if math.isfinite(search.errors.get(search.best, math.inf)) else None

    def best_baseline(self, records: Any, name: str) -> str | None:
        """Return the tuned baseline with the lowest median loss over the finished seeds.

        Return None while a search is not finished, or if fewer than two baselines are tuned on the problem.
        """
        rates = {key: self.searched(records, name, key).best for key in BASELINES if (key, name) in self.tunings}
        if len(rates) < 2 or None in rates.values():
            return None
        losses = {}
        for key, lr in rates.items():
            found = (loss_of(records.get(self.run(name, key, lr, seed))) for seed in self.seeds)
            losses[key] = median(loss for loss in found if loss is not None)
        return min(losses, key=losses.__getitem__)

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """Return the missing runs: default learning rates, searches, further seeds, and finally longer runs."""

        def runs(pairs: Iterable[tuple[str, str]], seeds: Sequence[int]) -> Iterator[Run]:
            known = {(name, *found): None for key, name in pairs if (found := self.selected(records, name, key))}
            return missing(records, [self.run(*settings[:3], seed, settings[3]) for seed in seeds for settings in known])

        untuned = list(product(self.untuned, self.tasks))
        yield from runs(untuned, self.seeds[:1])
        for contender, name in self.tunings:
            rates = self.searched(records, name, contender).missing
            yield from missing(records, [self.run(name, contender, lr, self.seeds[0]) for lr in rates])
        yield from runs([*untuned, *(pair for pair in self.tunings if pair[0] not in self.one_seed)], self.seeds[1:])
        yield from runs(product([LONGER_BASELINE] * self.longer, self.tasks), self.seeds)

    # Results

    def result(self, records: Any, name: str, contender: str) -> Result | None:
        """Return the result of the seeds that have a record, or None if there is none."""
        if (settings := self.selected(records, name, contender)) is None:
            return None
        key, lr, times = settings
        errors = test_errors(records, (self.run(name, key, lr, seed, times) for seed in self.seeds))
        return Result(lr, errors) if errors else None

    def results(self, records: Any) -> Results:
        """Return all results, including those of APEBench's own code."""
        found = {APEBENCH_FNO: {}}
        if self.apebench_runs is not None:
            for line in map(json.loads, self.apebench_runs.read_text(encoding="utf-8").splitlines()):
                found[APEBENCH_FNO].setdefault(line["size"], Result(1e-3, [])).errors.append(line["loss"])
        for contender in (*self.untuned, *self.contenders, BEST_BASELINE, LONGER_BASELINE):
            found[contender] = {name: r for name in self.tasks if (r := self.result(records, name, contender))}
        for name, longer in found[LONGER_BASELINE].items():
            found[LONGER_BASELINE][name] = min(longer, found[BEST_BASELINE][name], key=lambda own: median(own.errors))
        return {contender: own for contender, own in found.items() if own}

    def ratios(self, results: Results, contender: str, other: str) -> dict[str, float]:
        """Return a contender's median errors divided by those of another one, by problem, where that did not fail."""
        ours, theirs = (
            {name: median(own.errors) for name, own in results.get(key, {}).items()} for key in (contender, other)
        )
        return {name: error / theirs[name] for name, error in ours.items() if math.isfinite(theirs.get(name, math.inf))}

    def numbers(self, records: Any) -> dict[str, str]:
        """Return tables of errors, and each contender's errors relative to those of others."""
        results = self.results(records)
        columns = {key: results[key] for key in _COLUMNS if key in results}
        found = {
            "medians": self._errors(columns, lambda own: f"{median(own.errors):.3g}"),
            "over": _ratio_table({key: self.ratios(results, "MuSOAP, untuned", key).values() for key in _RIVALS}),
            "errors": self._errors(results, lambda own: f"{_with_range(own.errors)} at {own.lr:.3g}"),
        }
        groups = {"": self.tasks, **{f".{group}": names for group, names in self.groups.items()}}
        for contender, (short, other) in product(results, _DENOMINATORS.items()):
            ratios = self.ratios(results, contender, other)
            if not ratios or contender == other:
                continue
            prefix = f"{dotted(contender)}.over.{short}"
            values = {"median": median(ratios.values()), "least": min(ratios.values()), "most": max(ratios.values())}
            values |= {f"{dotted(name)}.errors": ratio for name, ratio in ratios.items()}
            found |= {f"{prefix}.{key}": f"{value:.2f}" for key, value in values.items()}
            for suffix, names in groups.items():
                if some := [ratio for name, ratio in ratios.items() if name in names]:
                    found[f"{prefix}{suffix}.mean"] = f"{geometric_mean(some):.2f}"
                    found[f"{prefix}{suffix}.interval"] = _interval(some)
        return found

    def _errors(self, results: Results, text: Callable[[Result], str]) -> str:
        """Return a table with a row for each problem that one of our runs has finished."""
        names = [name for name in self.tasks if any(name in own for key, own in results.items() if key != APEBENCH_FNO)]
        rows = [[named(n), *(text(own[n]) if n in own else "–" for own in results.values())] for n in names]
        return table(["", *results], rows)

    def draw(self, records: Any, path: Path) -> None:
        """Draw the errors relative to the best baseline, or to Adam if some baselines are not tuned."""
        results = self.results(records)
        complete = results.get(BEST_BASELINE, {}).keys() == results.get("Adam", {}).keys()
        if "Adam" in self.contenders:
            draw_comparison(results, path, names=list(self.tasks), relative_to=BEST_BASELINE if complete else "Adam")


def _ratio_table(ratios: Mapping[str, Collection[float]]) -> str:
    rows = [
        [key, str(len(own)), f"{geometric_mean(own):.2f}", _interval(own), f"{min(own):.2f} to {max(own):.2f}"]
        for key, own in ratios.items()
        if own
    ]
    return table(["relative to", "rows", "mean", "interval", "range"], rows)


def _with_range(errors: Sequence[float]) -> str:
    """Return the median, and the range if there are several seeds."""
    ends = f" [{min(errors):.3g}, {max(errors):.3g}]" if len(errors) > 1 else ""
    return f"{median(errors):.3g}{ends}"


def _interval(ratios: Sequence[float]) -> str:
    """Return Student's 95 % interval of the geometric mean, as if problems were drawn at random."""
    if len(ratios) < 2 or not all(map(math.isfinite, ratios)):
        return "–"
    low, high = student_interval([math.log(ratio) for ratio in ratios])
    return f"{math.exp(low):.2f} to {math.exp(min(high, 700)):.2f}"
