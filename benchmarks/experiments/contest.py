"""Who trains a problem best: optimizers of others and ours, each tuned to a best rate inside what was tried, and untuned.

A rate is searched with one seed (:func:`experiments.curves.searched`). Rates are chosen by the validation error, on APEBench
by the rollouts that are reported, which favours those who are tuned over those who are not. The chosen rate, and that of the
law, get further seeds.

``apebench``: data, protocol and score of APEBench. ``optimizers``: the problems of this repository, and one in 3D.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import fmean, geometric_mean, median, stdev
from typing import Any

import numpy as np

from experiments.contenders import DECAYS
from experiments.contest_figure import draw
from experiments.curves import rounded, searched
from experiments.kept import loss_of, missing
from experiments.pages import dotted, named, table
from experiments.training import LOST, STAGES, remembered, run_of
from neuralop_mup.core.parts import MODES, WIDTH
from neuralop_mup.lab.records import Run
from neuralop_mup.lab.statistics import student
from neuralop_mup.optim.musoap.optimizer import usual_lr
from problems.apebench import scenarios

LAYERS = 4
#: Trained at the law's rate → the contender that is.
UNTUNED = {"MuSOAP, untuned": "MuSOAP", "MuSOAP, untuned, no weight decay": "MuSOAP, no weight decay"}
THEIRS = "APEBench's FNO"
#: Scenarios on which all are tuned, two in 1D and two in 2D, chosen beforehand; on the others Adam and stock SOAP are.
SOME = ("diff_burgers 1D", "diff_kdv 1D", "phy_gs_type 2D", "phy_decay_turb 2D")
#: Scenarios of which the equation is linear, so that its solution operator is one multiplier a mode.
LINEAR = ("diff_disp 1D", "diff_hyp_diff 1D", "diff_adv 2D")


@dataclass(frozen=True)
class Contender:
    """An optimizer with its settings.

    ``lr``: where a search begins, for an optimizer of which the law gives no rate.
    """

    settings: Mapping[str, Any]
    lr: float | None = None

    def start(self, steps: int) -> float:
        """The first rate."""
        return rounded(usual_lr(steps) if self.lr is None else self.lr)


_OTHERS = {"rule": "standard", "kernel_init": "default"}
_OURS = {"kernel_init": "small"}
#: In the order in which they are trained.
CONTENDERS: dict[str, Contender] = {
    "MuSOAP": Contender({"optimizer": "soap", **_OURS}),
    "MuSOAP, no weight decay": Contender({"optimizer": "soap", "weight_decay": 0.0, **_OURS}),
    "Adam": Contender({"optimizer": "adam", **_OTHERS}, 4e-3),
    "stock SOAP": Contender({"optimizer": "stock-soap", **_OTHERS, "kernel_init": "small"}, 4e-3),
    "MuAdamW": Contender({"optimizer": "adamw", **_OURS}, 8e-3),
    "torch's Muon and AdamW": Contender({"optimizer": "stock-muon", **_OTHERS}, 4e-3),
    "AdamW": Contender({"optimizer": "adamw", "weight_decay": 0.01, **_OTHERS}, 4e-3),
    "Adam, eps 1e-6": Contender({"optimizer": "adam-eps", **_OTHERS}, 4e-3),
    "Adam, beta2 0.95": Contender({"optimizer": "adam", "beta2": 0.95, **_OTHERS}, 4e-3),
    **{
        f"AdamW, warm-up, decay {decay:g}": Contender({"optimizer": f"adamw-warm-{decay:g}", **_OTHERS}, 4e-3)
        for decay in DECAYS
    },
}
#: What people use: with and without decay and warm-up. The baseline is, on each field, the best of them.
USUAL = ("Adam", *(name for name in CONTENDERS if name.startswith("AdamW")))
BASELINE = "the best of Adam and AdamW"
#: More time than MuSOAP takes, at the rate that was the best: for so many steps Adam's loses 2.3 % at most on our problems.
LONGER = f"{BASELINE}, 1.4 times the steps"
#: Of Adam, so that nobody need ask: on the problems of this repository alone.
VARIANTS = ("Adam, eps 1e-6", "Adam, beta2 0.95")
#: Of which rates are searched everywhere.
TUNED = tuple(name for name in CONTENDERS if name not in ("MuSOAP, no weight decay", *VARIANTS))
#: Whose errors a page shows, for a table that is not too wide; the experiment's own text has all of them.
_ON_PAGES = (THEIRS, "MuSOAP, untuned", "MuSOAP", BASELINE, "Adam", "AdamW", "stock SOAP")
#: Over whose errors a page's table has those of the untuned MuSOAP.
_RIVALS = (THEIRS, BASELINE, LONGER, *USUAL, "stock SOAP")
#: Name in numbers of pages → who all are compared with.
_AGAINST = {
    "theirs": THEIRS,
    "Adam": "Adam",
    "best": BASELINE,
    "longer": LONGER,
    "SOAP": "stock SOAP",
    "none": "MuSOAP, untuned, no weight decay",
}
#: The same, for pages alone.
_ON_PAGES_AGAINST = {**_AGAINST, "AdamW": "AdamW", "tuned": "MuSOAP"}


@dataclass(frozen=True)
class End:
    """What a contender reaches on a field: its rate, and errors and training errors of its seeds."""

    lr: float
    errors: list[float] = field(default_factory=list)
    training: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Field:
    """A problem and the model and training that all get."""

    config: Mapping[str, Any]
    modes: tuple[int, ...]
    width: int
    steps: int
    batch: int = 20
    model: Mapping[str, Any] = field(default_factory=dict)  # its further arguments


_SUITE: dict[str, tuple[dict[str, Any], tuple[int, ...], int, int]] = {
    "burgers": ({"n_train": 800, "grid": 64}, (24,), 24, 10),
    "darcy": ({"n_train": 400, "grid": 20}, (10, 10), 16, 10),
    "allen-cahn": ({"n_train": 400, "grid": 20}, (10, 10), 16, 10),
    "korteweg-de-vries": ({"n_train": 800}, (32,), 24, 10),
    "gray-scott": ({"n_train": 400, "grid": 20}, (10, 10), 16, 10),
    "darcy-pino": ({"n_train": 200, "grid": 20}, (10, 10), 16, 10),
    "burgers-pino": ({"n_train": 200, "grid": 32, "time_points": 16}, (8, 16), 16, 10),
    "navier-stokes": ({"n_train": 100, "grid": 12, "time_points": 8}, (6, 8, 8), 12, 5),
    "gray-scott, 4 times the samples": ({"n_train": 1600, "grid": 20}, (10, 10), 16, 10),
    "gray-scott, 16 times the samples": ({"n_train": 6400, "grid": 20}, (10, 10), 16, 10),
    "interface": ({"n_train": 200, "grid": 16}, (8, 8, 8), 12, 5),
}
SUITE = {
    name: Field({"problem": name.partition(",")[0], "data": data}, modes, width, 1000, batch)
    for name, (data, modes, width, batch) in _SUITE.items()
}
_SCENARIOS = {
    name: Field(
        {"problem": "apebench", "data": {"scenario": name}, "rollout": scenarios.ROLLOUT},
        {1: (22,), 2: (14, 14)}[scenarios.dimensions(name)],
        18,
        scenarios.steps(name),
    )
    for name in scenarios.SCENARIOS
}
#: What a model has → further entries of its runs, and of its constructor. Ranks are shares of the dense kernels' numbers.
_LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Tucker": ({}, {"factorization": "tucker", "rank": 0.1}),
    "CP": ({}, {"factorization": "cp", "rank": 0.1}),
    "tensor train": ({}, {"factorization": "tt", "rank": 0.1}),
    "separable": ({}, {"separable": True}),
    "no channel MLP": ({}, {"use_channel_mlp": False}),
    "group norm": ({}, {"norm": "group_norm"}),
    "UNO": ({"net": "UNO"}, {}),
}
#: On two problems on which no default was chosen.
LAYOUTS = {
    f"{name}, {layout}": replace(on, config={**on.config, **entries}, model=model)
    for name, on in ((name, SUITE[name]) for name in ("korteweg-de-vries", "gray-scott"))
    for layout, (entries, model) in _LAYOUTS.items()
}
RATES, FURTHER = ({name: _SCENARIOS[name] for name in names} for names in (scenarios.CHOSEN_ON, scenarios.FURTHER))
APEBENCH = {name: own for name, own in _SCENARIOS.items() if name not in {**RATES, **FURTHER}}
#: Problems on which the law was not chosen, by their numbers of steps.
LENGTHS = {
    f"{name}, {steps} steps": replace(SUITE[name], steps=steps)
    for steps in (250, 500, 1000)
    for name in ("korteweg-de-vries", "gray-scott", "navier-stokes", "darcy-pino", "burgers-pino", "interface")
}


@dataclass(frozen=True)
class Contest:
    """The experiment: fields, and who trains them.

    Attributes
    ----------
    about : str
    fields : mapping
        Name → problem.
    contenders : tuple of str
        Keys of :data:`CONTENDERS`, of which rates are searched.
    seeds : tuple of int
    once : tuple of str
        Contenders that the first seed alone trains.
    few : mapping of str to tuple of str, optional
        Contender → the fields that alone it is trained on; all where nothing is said.
    after_adam : bool
        Whether searches of AdamW's rate begin at Adam's best one, with a factor of 2 to either side: fewer runs.
    longer : bool
        Whether the best of Adam and AdamW is trained with more steps as well: :data:`LONGER`.
    untuned : mapping of str to str
        What a contender at the law's rate is called → who it is.
    groups : mapping of str to tuple of str
        What pages call some of the fields → these.
    told : str
        What is reported of a run: its ``loss``, by which rates are chosen, or another of its numbers.
    others : Path, optional
        Lines of runs that were made elsewhere, by others' own code: ``size`` (a field's name), ``loss`` and ``seconds``.
    """

    about: str
    fields: Mapping[str, Field]
    contenders: tuple[str, ...] = (*TUNED, *VARIANTS)
    seeds: tuple[int, ...] = (0, 1, 2)
    once: tuple[str, ...] = ()
    few: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    after_adam: bool = False
    longer: bool = False
    untuned: Mapping[str, str] = field(default_factory=lambda: UNTUNED)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    told: str = "loss"
    others: Path | None = None

    metrics = ("validation_error", "test_loss", "train_loss", "seconds")

    def tiny(self) -> Contest:
        """One field, two contenders, small models and short runs."""
        less = {"n_train": 40, "n_val": 20, "n_test": 20, "grid": 16}
        fields = {"burgers": Field({"problem": "burgers", "data": less}, (8,), 8, STAGES)}
        return replace(self, fields=fields, contenders=("MuSOAP", "stock SOAP"), seeds=(0,), others=None)

    # What is wanted

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Contender and field, of all that are tuned."""
        return [(who, name) for who in self.contenders for name in self.fields if name in self.few.get(who, self.fields)]

    @remembered
    def run(self, name: str, contender: str, lr: float, seed: int, times: float = 1.0) -> Run:
        """A run of a contender on a field, with so many times its steps."""
        on, who = self.fields[name], CONTENDERS[contender]
        size = {"n_layers": LAYERS, "n_modes": on.modes, **on.model}
        config = {
            **on.config,
            "steps": round(on.steps * times / STAGES) * STAGES,
            "batch_size": on.batch,
            "model": {**size, "hidden_channels": on.width},
            "base": {**size, "n_modes": (MODES,) * len(on.modes), "hidden_channels": WIDTH},
            **who.settings,
            "lr": lr,
            "seed": seed,
        }
        more = "" if times == 1.0 else f", {times:g} times the steps"
        labels = {"size": f"{name}, {contender}{more}", "params": {"lr": lr}, "seed": seed}
        return run_of(config, **labels)

    def error(self, records: Any, run: Run, by: str = "loss") -> float | None:
        """What a run is judged by, infinite where it did not train; None where it is not done."""
        value = loss_of(record := records.get(run))
        if value is not None and math.isfinite(value):
            value = {**record["metrics"], "loss": value}.get(by, math.nan)
        return math.inf if value is not None and value >= LOST else value

    def searched(self, records: Any, name: str, contender: str) -> tuple[dict[float, float], list[float]]:
        """Rate → error of the first seed, of those that are done, and the rates that are wanted next; neither while the
        search at whose end it begins is under way.
        """
        start, spread = CONTENDERS[contender].start(self.fields[name].steps), 4.0
        if self.after_adam and contender in USUAL[1:]:
            found, left = self.searched(records, name, "Adam")
            if left:
                return {}, []
            start, spread = min(found, key=found.__getitem__), 2.0
        return searched(lambda lr: self.error(records, self.run(name, contender, lr, self.seeds[0])), start, spread=spread)

    def wanted(self, records: Any) -> Iterator[Run]:
        """The runs that are missing: first every untuned one, then search by search, then further seeds, then more steps."""

        def known(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str, float, float]]:
            return [(name, *at) for who, name in pairs if (at := self.rated(records, name, who))]

        def runs(points: Iterable[tuple[str, str, float, float]], seeds: Sequence[int]) -> list[Run]:
            return [self.run(name, who, lr, seed, times) for seed in seeds for name, who, lr, times in points]

        law = known(product(self.untuned, self.fields))
        yield from missing(records, runs(law, self.seeds[:1]))
        for contender, name in self.pairs:
            asked = self.searched(records, name, contender)[1]
            yield from missing(records, [self.run(name, contender, lr, self.seeds[0]) for lr in asked])
        tuned = known((who, name) for who, name in self.pairs if who not in self.once)
        points = dict.fromkeys([*law, *tuned])  # a tuned MuSOAP may have the law's rate
        yield from missing(records, runs(points, self.seeds[1:]))
        yield from missing(records, runs(known(product([LONGER] * self.longer, self.fields)), self.seeds))

    # What they say

    def rated(self, records: Any, name: str, contender: str) -> tuple[str, float, float] | None:
        """Who of :data:`CONTENDERS` it is on a field, its rate, and how many times the steps; None while it is not known."""
        if contender in self.untuned:
            who = self.untuned[contender]
            return who, CONTENDERS[who].start(self.fields[name].steps), 1.0
        if contender in (BASELINE, LONGER):
            found = self.rated(records, name, who) if (who := self.usual(records, name)) else None
            return found and (*found[:2], 1.4 if contender == LONGER else 1.0)
        errors, left = self.searched(records, name, contender)
        if left or not math.isfinite(min(errors.values(), default=math.inf)):
            return None
        return contender, min(errors, key=errors.__getitem__), 1.0

    def end(self, records: Any, name: str, contender: str) -> End | None:
        """What a contender whose rate is known reaches on a field, with the seeds that are done."""
        at = self.rated(records, name, contender)
        if at is None:
            return None
        who, lr, times = at
        runs = [run for seed in self.seeds if records.get(run := self.run(name, who, lr, seed, times)) is not None]
        errors, training = ([self.error(records, run, by) for run in runs] for by in (self.told, "train_loss"))
        return End(lr, errors, training) if runs else None

    def ends(self, records: Any) -> dict[str, dict[str, End]]:
        """Contender → field → what it reaches, of those that are done; others' own runs among them."""
        found = {
            who: {n: e for n in self.fields if (e := self.end(records, n, who))}
            for who in (*self.untuned, *self.contenders, BASELINE, LONGER)
        }
        theirs: dict[str, End] = {}
        for line in [] if self.others is None else map(json.loads, self.others.read_text(encoding="utf-8").splitlines()):
            theirs.setdefault(line["size"], End(1e-3)).errors.append(line["loss"])
        return {who: own for who, own in {THEIRS: theirs, **found}.items() if own}

    def usual(self, records: Any, name: str) -> str | None:
        """Which of what people use is best on a field, of those that are tuned on it: by the median, over the seeds that are
        done, of what rates are chosen by.

        None while one of them is not done.
        """
        losses = {}
        tuned = [who for who in USUAL if (who, name) in self.pairs]
        for who in tuned if len(tuned) > 1 else ():
            found, left = self.searched(records, name, who)
            if left or not found:
                return None
            lr = min(found, key=found.__getitem__)
            errors = [self.error(records, self.run(name, who, lr, seed)) for seed in self.seeds]
            losses[who] = median(error for error in errors if error is not None)
        return min(losses, key=losses.__getitem__, default=None)

    def table(self, records: Any) -> str:
        """Errors of each contender on each field, in training, too, and their ratios."""
        ends = self.ends(records)
        lines = [
            f"# {self.about[0].upper()}{self.about[1:]}\n",
            f"{sum(len(ends.get(who, ())) for who in self.contenders)} of {len(self.pairs)} searches are done. Median error "
            "over the seeds, their range where there are several, and the learning rate.",
            *self._errors(ends, lambda end: f"{_spread(end.errors)} at {end.lr:.3g}"),
        ]
        lines += ["\n## In training", *self._errors(ends, lambda end: _spread(end.training) if end.training else "–")]
        for other in _AGAINST.values():
            rows = [
                [
                    who,
                    str(len(over)),
                    f"{geometric_mean(over):.2f} ({_interval(over)})",
                    f"{median(over):.2f}",
                    f"{min(over):.2f} to {max(over):.2f}",
                ]
                for who in ends
                if who != other and (over := self.against(ends, who, other))
            ]
            if rows:
                lines += [
                    f"\n## Error over that of {other}",
                    *table(["", "problems", "geometric mean (95 % interval)", "median", "range"], rows),
                ]
        return "\n".join(lines) + "\n"

    def _errors(self, ends: Mapping[str, Mapping[str, End]], said: Callable[[End], str]) -> list[str]:
        """A row for each field of which one of ours is done."""
        fields = [name for name in self.fields if any(name in own for who, own in ends.items() if who != THEIRS)]
        rows = [[named(n), *(said(own[n]) if n in own else "–" for own in ends.values())] for n in fields]
        return table(["", *ends], rows)

    def _over(self, ends: Mapping[str, Mapping[str, End]], who: str) -> list[str]:
        """A contender's errors over those of each other one that pages compare it with."""
        rows = [
            [other, str(len(over)), f"{geometric_mean(over):.2f}", _interval(over), f"{min(over):.2f} to {max(over):.2f}"]
            for other in _RIVALS
            if who in ends and (over := self.against(ends, who, other))
        ]
        return table(["over", "problems", "mean", "interval", "range"], rows)

    def draw(self, records: Any, path: Path) -> None:
        """The figure, over the baseline; over Adam where some of the baseline's searches are not done."""
        ends = self.ends(records)
        over = BASELINE if ends.get(BASELINE, {}).keys() == ends.get("Adam", {}).keys() else "Adam"
        if "Adam" in self.contenders:
            draw(ends, {name: named(name).strip("`") for name in self.fields}, path, over=over)

    def numbers(self, records: Any) -> dict[str, str]:
        """What pages quote: the errors, each contender's over those of others, and single runs of a search."""
        ends = self.ends(records)
        shown = {who: ends[who] for who in _ON_PAGES if who in ends}
        said = {
            "table": "\n".join(self._errors(ends, lambda end: _spread(end.errors))),
            "medians": "\n".join(self._errors(shown, lambda end: f"{median(end.errors):.3g}")),
            "over": "\n".join(self._over(ends, "MuSOAP, untuned")),
        }
        for name, who in product(self.fields, self.contenders):
            for lr, error in self.searched(records, name, who)[0].items():
                called = dotted(f"{name} {who} {lr:g}")
                one = self.error(records, self.run(name, who, lr, self.seeds[0]), "validation_error") or math.nan
                said |= {called: f"{error:.2g}", f"{called}.one": f"{one:.2g}"}
        for who, (short, other) in product(ends, _ON_PAGES_AGAINST.items()):
            if who not in (THEIRS, other) and (over := self.against(ends, who, other)):
                called = f"{dotted(who)}.over.{short}"
                ninth = float(np.quantile(over, 0.9, method="higher"))
                told = {"mean": geometric_mean(over), "median": median(over), "ninth": ninth}
                told |= {"least": min(over), "most": max(over)} | {
                    f"{dotted(name)}.{kind}": median(own) / median(theirs)
                    for name, kind in product(ends[who].keys() & ends[other].keys(), ("errors", "training"))
                    if (own := getattr(ends[who][name], kind)) and (theirs := getattr(ends[other][name], kind))
                }
                for group, names in self.groups.items():
                    if some := self.against(ends, who, other, names):
                        said |= {
                            f"{called}.{group}.mean": f"{geometric_mean(some):.2f}",
                            f"{called}.{group}.interval": _interval(some),
                            f"{called}.{group}.of": str(len(some)),
                        }
                said |= {
                    f"{called}.of": str(len(over)),
                    f"{called}.interval": _interval(over),
                    f"{called}.lower": str(sum(ratio < 1 for ratio in over)),
                    f"{called}.apart": str(self.apart(ends, who, other)),
                    f"{called}.behind": str(self.apart(ends, other, who)),
                    **{f"{called}.{k}": f"{value:.2f}" for k, value in told.items()},
                }
        return said

    def against(
        self, ends: Mapping[str, Mapping[str, End]], who: str, other: str, names: Iterable[str] | None = None
    ) -> list[float]:
        """A contender's errors over the other's, on those of the fields on which both are done and the other is not lost."""
        theirs = {name: median(end.errors) for name, end in ends.get(other, {}).items()}
        done = [name for name in ends[who] if math.isfinite(theirs.get(name, math.inf)) and (names is None or name in names)]
        return [median(ends[who][name].errors) / theirs[name] for name in done]

    def apart(self, ends: Mapping[str, Mapping[str, End]], who: str, other: str) -> int:
        """On how many fields every seed of a contender is below every seed of the other's."""
        return sum(max(end.errors) < min(ends[other][n].errors) for n, end in ends[who].items() if n in ends[other])


def _spread(errors: Sequence[float]) -> str:
    """Their median, and their range where there are several."""
    ends = f" [{min(errors):.3g}, {max(errors):.3g}]" if len(errors) > 1 else ""
    return f"{median(errors):.3g}{ends}"


def _interval(ratios: Sequence[float]) -> str:
    """Where their geometric mean lies with 95 %, were the problems drawn at random: Student's, of the logarithms.

    A dash for a single ratio, and for those that are not finite.
    """
    if len(ratios) < 2 or not all(map(math.isfinite, ratios)):
        return "–"
    logs = [math.log(ratio) for ratio in ratios]
    reach = student(len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    return f"{math.exp(fmean(logs) - reach):.2f} to {math.exp(min(fmean(logs) + reach, 700)):.2f}"
