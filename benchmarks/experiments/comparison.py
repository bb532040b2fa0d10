"""Compare optimizers: the package's own and others, each with a tuned learning rate, and MuSOAP with its default rate.

Each learning rate is searched with one seed (:func:`experiments.curves.searched`) and selected by the validation error. On
APEBench it is selected by the reported rollout error, which favours the tuned optimizers. The selected rate and the default
rate are trained with all seeds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from experiments.contenders import DECAYS
from experiments.curves import rounded, searched
from experiments.experiment import Experiment
from experiments.figures import draw_comparison
from experiments.pages import dotted, named, student_interval, table
from experiments.records import loss_of, missing
from experiments.tasks import Task
from experiments.training import LOST, STAGES, remembered, run_of
from neuralop_mup.lab.records import Run
from neuralop_mup.optim.musoap.optimizer import default_lr


@dataclass(frozen=True)
class Contender:
    """An optimizer with its settings.

    Attributes
    ----------
    settings : mapping
        Entries of a run.
    lr : float, optional
        Initial learning rate of a search; by default MuSOAP's default.
    """

    settings: Mapping[str, Any]
    lr: float | None = None

    def start(self, steps: int) -> float:
        """Return the initial learning rate of a search."""
        return rounded(default_lr(steps) if self.lr is None else self.lr)


_STANDARD = {"rule": "standard", "kernel_init": "default"}
_MUP = {"kernel_init": "small"}
#: Name → optimizer, in the order of training.
CONTENDERS: dict[str, Contender] = {
    "MuSOAP": Contender({"optimizer": "soap", **_MUP}),
    "MuSOAP, no weight decay": Contender({"optimizer": "soap", "weight_decay": 0.0, **_MUP}),
    "Adam": Contender({"optimizer": "adam", **_STANDARD}, 4e-3),
    "stock SOAP": Contender({"optimizer": "stock-soap", **_STANDARD, "kernel_init": "small"}, 4e-3),
    "MuAdamW": Contender({"optimizer": "adamw", **_MUP}, 8e-3),
    "torch's Muon and AdamW": Contender({"optimizer": "stock-muon", **_STANDARD}, 4e-3),
    "AdamW": Contender({"optimizer": "adamw", "weight_decay": 0.01, **_STANDARD}, 4e-3),
    "Adam, eps 1e-6": Contender({"optimizer": "adam-eps", **_STANDARD}, 4e-3),
    "Adam, beta2 0.95": Contender({"optimizer": "adam", "beta2": 0.95, **_STANDARD}, 4e-3),
    **{
        f"AdamW, warm-up, decay {decay:g}": Contender({"optimizer": f"adamw-warm-{decay:g}", **_STANDARD}, 4e-3)
        for decay in DECAYS
    },
}
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


@dataclass(frozen=True)
class Result:
    """Learning rate of a contender on a problem, with test and training errors of its seeds."""

    lr: float
    errors: list[float] = field(default_factory=list)
    training: list[float] = field(default_factory=list)


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
    reported : str
        Metric that is reported. Learning rates are selected by the ``loss``.
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
    reported: str = "loss"
    apebench_runs: Path | None = None

    notes = "Errors are medians over the seeds, with their range and the learning rate. Ratios are those of medians."
    metrics = ("validation_error", "test_loss", "train_loss", "seconds")

    def tiny(self) -> Comparison:
        """Return a comparison of two small models on one problem."""
        data = {"n_train": 40, "n_val": 20, "n_test": 20, "grid": 16}
        tasks = {"burgers": Task({"problem": "burgers", "data": data}, (8,), 8, STAGES)}
        return replace(self, tasks=tasks, contenders=("MuSOAP", "stock SOAP"), seeds=(0,), apebench_runs=None)

    # Runs

    @remembered
    def run(self, name: str, contender: str, lr: float, seed: int, times: float = 1.0) -> Run:
        """Return a run of a contender on a problem, with a multiple of its number of steps."""
        own = self.tasks[name]
        config = {
            **own.run_config(round(own.steps * times / STAGES) * STAGES),
            **CONTENDERS[contender].settings,
            "lr": lr,
            "seed": seed,
        }
        suffix = "" if times == 1.0 else f", {times:g} times the steps"
        return run_of(config, size=f"{name}, {contender}{suffix}", params={"lr": lr}, seed=seed)

    @property
    def tunings(self) -> list[tuple[str, str]]:
        """Return the contenders and problems of all searches."""
        return [pair for pair in product(self.contenders, self.tasks) if pair[1] in self.only_on.get(pair[0], self.tasks)]

    def error(self, records: Any, run: Run, metric: str = "loss") -> float | None:
        """Return an error of a run: infinite if the training failed, None if there is no record."""
        loss = loss_of(record := records.get(run))
        if loss is None or math.isinf(loss):
            return loss
        value = {**record["metrics"], "loss": loss}.get(metric, math.nan)
        return math.inf if value >= LOST else value

    def searched(self, records: Any, name: str, contender: str) -> tuple[dict[float, float], list[float]]:
        """Return the errors of the first seed by learning rate, and the learning rates to measure next.

        Both are empty if this search begins at the result of another one that is not finished.
        """
        start, spread = CONTENDERS[contender].start(self.tasks[name].steps), 4.0
        if near := self.search_from.get(contender):
            if isinstance(near, str):
                found, unmeasured = self.searched(records, name, near)
                if unmeasured:
                    return {}, []
                near = min(found, key=found.__getitem__)
            start, spread = near, 2.0
        return searched(lambda lr: self.error(records, self.run(name, contender, lr, self.seeds[0])), start, spread=spread)

    def selected(self, records: Any, name: str, contender: str) -> tuple[str, float, float] | None:
        """Return the key of :data:`CONTENDERS`, the learning rate and the multiple of steps that a result uses.

        Return None while a search is not finished.
        """
        if contender in self.untuned:
            key = self.untuned[contender]
            return key, CONTENDERS[key].start(self.tasks[name].steps), 1.0
        if contender in (BEST_BASELINE, LONGER_BASELINE):
            best = self.best_baseline(records, name)
            found = None if best is None else self.selected(records, name, best)
            return found and (*found[:2], MORE_STEPS if contender == LONGER_BASELINE else 1.0)
        errors, unmeasured = self.searched(records, name, contender)
        if unmeasured or not math.isfinite(min(errors.values(), default=math.inf)):
            return None
        return contender, min(errors, key=errors.__getitem__), 1.0

    def best_baseline(self, records: Any, name: str) -> str | None:
        """Return the tuned baseline with the lowest median loss over the finished seeds.

        Return None while a search is not finished, or if fewer than two baselines are tuned on the problem.
        """
        losses = {}
        tuned = [key for key in BASELINES if (key, name) in self.tunings]
        for key in tuned if len(tuned) > 1 else ():
            found, unmeasured = self.searched(records, name, key)
            if unmeasured or not found:
                return None
            lr = min(found, key=found.__getitem__)
            errors = [self.error(records, self.run(name, key, lr, seed)) for seed in self.seeds]
            losses[key] = median(error for error in errors if error is not None)
        return min(losses, key=losses.__getitem__, default=None)

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """Return the missing runs: default learning rates, searches, further seeds, and finally longer runs."""

        def runs(pairs: Iterable[tuple[str, str]], seeds: Sequence[int]) -> Iterator[Run]:
            known = {(name, *found): None for key, name in pairs if (found := self.selected(records, name, key))}
            return missing(records, [self.run(*settings[:3], seed, settings[3]) for seed in seeds for settings in known])

        untuned = list(product(self.untuned, self.tasks))
        yield from runs(untuned, self.seeds[:1])
        for contender, name in self.tunings:
            rates = self.searched(records, name, contender)[1]
            yield from missing(records, [self.run(name, contender, lr, self.seeds[0]) for lr in rates])
        yield from runs([*untuned, *(pair for pair in self.tunings if pair[0] not in self.one_seed)], self.seeds[1:])
        yield from runs(product([LONGER_BASELINE] * self.longer, self.tasks), self.seeds)

    # Results

    def result(self, records: Any, name: str, contender: str) -> Result | None:
        """Return the result of the seeds that have a record, or None if there is none."""
        settings = self.selected(records, name, contender)
        if settings is None:
            return None
        key, lr, times = settings
        runs = [run for seed in self.seeds if records.get(run := self.run(name, key, lr, seed, times)) is not None]
        errors, training = ([self.error(records, run, metric) for run in runs] for metric in (self.reported, "train_loss"))
        return Result(lr, errors, training) if runs else None

    def results(self, records: Any) -> Results:
        """Return all results, including those of APEBench's own code."""
        found: dict[str, dict[str, Result]] = {APEBENCH_FNO: {}}
        if self.apebench_runs is not None:
            for line in map(json.loads, self.apebench_runs.read_text(encoding="utf-8").splitlines()):
                found[APEBENCH_FNO].setdefault(line["size"], Result(1e-3)).errors.append(line["loss"])
        for contender in (*self.untuned, *self.contenders, BEST_BASELINE, LONGER_BASELINE):
            found[contender] = {name: r for name in self.tasks if (r := self.result(records, name, contender))}
        for name, longer in found[LONGER_BASELINE].items():
            found[LONGER_BASELINE][name] = min(longer, found[BEST_BASELINE][name], key=lambda own: median(own.errors))
        return {contender: own for contender, own in found.items() if own}

    def ratios(self, results: Results, contender: str, other: str, names: Iterable[str] | None = None) -> list[float]:
        """Return a contender's median errors divided by those of another one, where that did not fail."""
        denominators = {name: median(own.errors) for name, own in results.get(other, {}).items()}
        shared = [name for name in results.get(contender, {}) if math.isfinite(denominators.get(name, math.inf))]
        return [
            median(results[contender][name].errors) / denominators[name] for name in shared if names is None or name in names
        ]

    def numbers(self, records: Any) -> dict[str, str]:
        """Return tables of errors, and each contender's errors relative to those of others."""
        results = self.results(records)
        columns = {key: results[key] for key in _COLUMNS if key in results}
        tables = {
            "medians": self._errors(columns, lambda own: f"{median(own.errors):.3g}"),
            "over": _ratio_table({key: self.ratios(results, "MuSOAP, untuned", key) for key in _RIVALS}),
            "errors": self._errors(results, lambda own: f"{_with_range(own.errors)} at {own.lr:.3g}"),
        }
        found = {name: "\n".join(lines) for name, lines in tables.items()}
        for contender, (short, other) in product(results, _DENOMINATORS.items()):
            ratios = [] if contender in (APEBENCH_FNO, other) else self.ratios(results, contender, other)
            if not ratios:
                continue
            prefix = f"{dotted(contender)}.over.{short}"
            values = {"median": median(ratios), "least": min(ratios), "most": max(ratios)}
            for name, kind in product(results[contender].keys() & results[other].keys(), ("errors", "training")):
                own, others = (getattr(results[key][name], kind) for key in (contender, other))
                if own and others:
                    values[f"{dotted(name)}.{kind}"] = median(own) / median(others)
            found |= {f"{prefix}.{key}": f"{value:.2f}" for key, value in values.items()}
            for suffix, names in {"": None, **{f".{group}": names for group, names in self.groups.items()}}.items():
                if some := self.ratios(results, contender, other, names):
                    found[f"{prefix}{suffix}.mean"] = f"{geometric_mean(some):.2f}"
                    found[f"{prefix}{suffix}.interval"] = _interval(some)
        return found

    def _errors(self, results: Results, text: Callable[[Result], str]) -> list[str]:
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


def _ratio_table(ratios: Mapping[str, Sequence[float]]) -> list[str]:
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
