"""Who trains a problem best: optimizers of others and ours, each tuned to a best rate inside what was tried, and untuned.

A rate is searched with one seed (:func:`experiments.curves.searched`). Rates are chosen by the validation error, on APEBench
by the rollouts that are reported, which favours those who are tuned over those who are not. The chosen rate, and that of the
law, get further seeds.

``apebench``: data, protocol and score of APEBench. ``optimizers``: the problems of this repository, and one in 3D.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from experiments.contenders import DECAYS
from experiments.curves import rounded, searched
from experiments.fields import Field
from experiments.kept import loss_of, missing
from experiments.training import LOST, STAGES, remembered, run_of
from neuralop_mup.lab.records import Run
from neuralop_mup.optim.musoap.optimizer import default_lr

#: Trained at the law's rate → the contender that is.
UNTUNED = {"MuSOAP, untuned": "MuSOAP", "MuSOAP, untuned, no weight decay": "MuSOAP, no weight decay"}
THEIRS = "APEBench's FNO"


@dataclass(frozen=True)
class Contender:
    """An optimizer with its settings.

    ``lr``: where a search begins, for an optimizer of which the law gives no rate.
    """

    settings: Mapping[str, Any]
    lr: float | None = None

    def start(self, steps: int) -> float:
        """The first rate."""
        return rounded(default_lr(steps) if self.lr is None else self.lr)


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
#: More time than MuSOAP takes, at the rate that was the best; the shorter training where that ends lower.
TIMES = 1.4
LONGER = f"{BASELINE}, up to {TIMES:g} times the steps"
#: Of Adam, so that nobody need ask: on the problems of this repository alone.
VARIANTS = ("Adam, eps 1e-6", "Adam, beta2 0.95")
#: Of which rates are searched everywhere.
TUNED = tuple(name for name in CONTENDERS if name not in ("MuSOAP, no weight decay", *VARIANTS))


@dataclass(frozen=True)
class End:
    """What a contender reaches on a field: its rate, and errors and training errors of its seeds."""

    lr: float
    errors: list[float] = field(default_factory=list)
    training: list[float] = field(default_factory=list)


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
    near : mapping of str to float or str
        Contender → a rate near its best one, or whose best rate that is. Its search begins there, with a factor of 2 to
        either side: fewer runs.
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
    near: Mapping[str, float | str] = field(default_factory=dict)
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

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Contender and field, of all that are tuned."""
        return [(who, name) for who in self.contenders for name in self.fields if name in self.few.get(who, self.fields)]

    @remembered
    def run(self, name: str, contender: str, lr: float, seed: int, times: float = 1.0) -> Run:
        """A run of a contender on a field, with so many times its steps."""
        on, who = self.fields[name], CONTENDERS[contender]
        config = {
            **on.run_config(round(on.steps * times / STAGES) * STAGES),
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
        if near := self.near.get(contender):
            if isinstance(near, str):
                found, left = self.searched(records, name, near)
                if left:
                    return {}, []
                near = min(found, key=found.__getitem__)
            start, spread = near, 2.0
        return searched(lambda lr: self.error(records, self.run(name, contender, lr, self.seeds[0])), start, spread=spread)

    def missing_runs(self, records: Any) -> Iterator[Run]:
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

    def rated(self, records: Any, name: str, contender: str) -> tuple[str, float, float] | None:
        """Who of :data:`CONTENDERS` it is on a field, its rate, and how many times the steps; None while it is not known."""
        if contender in self.untuned:
            who = self.untuned[contender]
            return who, CONTENDERS[who].start(self.fields[name].steps), 1.0
        if contender in (BASELINE, LONGER):
            found = self.rated(records, name, who) if (who := self.usual(records, name)) else None
            return found and (*found[:2], TIMES if contender == LONGER else 1.0)
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
        for name, end in found[LONGER].items():
            found[LONGER][name] = min(end, found[BASELINE][name], key=lambda own: median(own.errors))
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
