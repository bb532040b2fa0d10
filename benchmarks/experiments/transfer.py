"""Does a tuned learning rate carry over? The best rate at a base and at a target, for each rule, and what carrying it loses.

A move changes one thing between base and target: width, modes, depth, both sizes at once, samples, points of the grid, or
batch. At both ends the best rate is searched with one seed (:func:`experiments.curves.searched`); then all seeds are trained
at the rates around it, and at the target also around the base's best and at the law's. Under μP the model at the target is
parametrized from the base; under SP it is neuralop's own.

Drift is the best rate at the target over that at the base; regret is what the base's best rate loses at the target.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from experiments.curves import Curve, rounded, searched
from experiments.kept import loss_of, missing
from experiments.law import CENTRE, PROBLEMS
from experiments.pages import NAMES, percent, table
from experiments.training import remembered, run_of
from neuralop_mup.lab.records import Run
from neuralop_mup.optim.musoap.optimizer import default_lr

#: What an end of a move has of a problem: a share of what its centre has, or another entry of the problem.
Shares = Mapping[str, float | str]
#: Move → the base's and the target's shares.
MOVES: dict[str, tuple[Shares, Shares]] = {
    "width, 8 times": ({"width": 0.5}, {"width": 4}),
    "modes, 4 times": ({"modes": 0.25}, {}),
    "width 4 times, modes 4 times": ({"width": 0.5, "modes": 0.25}, {"width": 2}),
    "depth, 4 times": ({"depth": 0.5}, {"depth": 2}),
    "samples, 4 times": ({"samples": 0.25}, {}),
    "points, twice an axis": ({}, {"grid": 2}),
    "batch, 8 times": ({"batch": 0.25}, {"batch": 2}),
}
#: Optimizer → settings, and where a search begins; None: at the law's rate.
OPTIMIZERS: dict[str, tuple[dict[str, Any], float | None]] = {
    "MuSOAP": ({"optimizer": "soap", "kernel_init": "small"}, None),
    "MuAdam": ({"optimizer": "adam", "kernel_init": "small"}, 8e-3),
    "Adam (SP)": ({"optimizer": "adam", "rule": "standard"}, 4e-3),
    "MuAdam, log-modes": ({"optimizer": "adam", "kernel_init": "small", "rule": "log-modes"}, 8e-3),
}

#: Columns of the regrets where sizes grow, for a table that is not too wide.
_ON_PAGES = ("MuSOAP", "MuSOAP, untuned", "MuAdam", "Adam (SP)")


@dataclass(frozen=True)
class Transfer:
    """The experiment: every move on every problem, under every optimizer.

    Attributes
    ----------
    about : str
    problems : mapping of str to dict
        Problem → what its centre has: samples, grid, modes, width, batch, steps; ``data``, further arguments of the problem;
        ``settings`` of its runs, and those ``under_mup`` alone.
    moves, optimizers : mapping
        As :data:`MOVES` and :data:`OPTIMIZERS`.
    few : mapping of str to tuple of str, optional
        Optimizer → the moves that alone it is trained on; all where nothing is said.
    """

    about: str
    problems: Mapping[str, Mapping[str, Any]]
    moves: Mapping[str, tuple[Shares, Shares]] = field(default_factory=lambda: MOVES)
    optimizers: Mapping[str, tuple[dict[str, Any], float | None]] = field(default_factory=lambda: OPTIMIZERS)
    few: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)
    small: bool = False

    def tiny(self) -> Transfer:
        """One problem, the last move and optimizer, small models and short runs."""
        last = {name: dict(list(getattr(self, name).items())[-1:]) for name in ("moves", "optimizers")}
        small = {**PROBLEMS["darcy"], "width": 8, "grid": 16, "modes": (16, 16), "fewest": (4, 4), "steps": 50}
        return replace(self, problems={"darcy": small}, few={}, **last, seeds=(0,), small=True)

    def cells(self) -> Iterator[tuple[str, str, str]]:
        """Problem, move and optimizer, in the order in which they are trained."""
        return (
            (p, move, who)
            for move, who, p in product(self.moves, self.optimizers, self.problems)
            if move in self.few.get(who, self.moves)
        )

    @remembered
    def run(self, cell: tuple[str, str, str], end: int, lr: float, seed: int) -> Run:
        """A run at the base (0) or at the target (1) of a cell."""
        problem, move, who = cell
        base, f = (self._size(problem, self.moves[move][which]) for which in (0, end))
        settings = self.optimizers[who][0]
        if settings.get("rule") != "standard":
            settings = {**settings, **f.get("under_mup", {})}
        if end == 0 and "kernel_init" not in settings:  # every rule is SP there, bit for bit, and is trained once
            settings = {**settings, "rule": "standard"}
        less = {"n_train": 40, "n_val": 20, "n_test": 20} if self.small else {"n_train": f["samples"]}
        config = {
            "problem": problem,
            "data": {"grid": f["grid"], **f.get("data", {}), **less},
            "steps": f["steps"],
            "batch_size": f["batch"],
            "model": _model(f),
            "base": _model(base),
            **settings,
            **f.get("settings", {}),
            "lr": lr,
            "seed": seed,
        }
        size = f"{problem}, {move}, {who}, {('base', 'target')[end]}"
        return run_of(config, size=size, params={"lr": lr}, seed=seed)

    def _size(self, problem: str, shares: Shares) -> dict[str, Any]:
        own = {**CENTRE, **self.problems[problem]}
        for name, share in shares.items():
            own[name] = own[share] if isinstance(share, str) else _part(own[name], share)
        return own

    def searched(self, records: Any, cell: tuple[str, str, str], end: int) -> tuple[dict[float, float], list[float]]:
        """The first seed's search at an end."""
        start = self.optimizers[cell[2]][1] or self._untuned(cell)[0]
        return searched(lambda lr: loss_of(records.get(self.run(cell, end, lr, self.seeds[0]))), start)

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """The runs that are missing: both searches of a cell, then its further seeds."""
        for cell in self.cells():
            for end in (0, 1):
                left = self.searched(records, cell, end)[1]
                asked = [(lr, self.seeds[0]) for lr in left] or product(self.rates(records, cell, end), self.seeds)
                yield from missing(records, [self.run(cell, end, *one) for one in asked])

    def rates(self, records: Any, cell: tuple[str, str, str], end: int) -> list[float]:
        """Rates at which all seeds are trained, once the search is done. What is carried to the target is among them."""
        rates = _near(self.searched(records, cell, end)[0])
        if end == 1 and (base := self.curve(records, cell, 0)) is not None:
            below, above = ([lr for lr in base.errors if sign * (math.log2(lr) - base.best) >= 0] for sign in (-1, 1))
            rates += [max(below), min(above), *self._untuned(cell)]
        return sorted(set(rates))

    def _untuned(self, cell: tuple[str, str, str]) -> list[float]:
        """The law's rate, for an optimizer that has one."""
        return [rounded(default_lr(self._size(cell[0], {})["steps"]))] if self.optimizers[cell[2]][1] is None else []

    def curve(self, records: Any, cell: tuple[str, str, str], end: int) -> Curve | None:
        """Errors of the seeds that are done at all of :meth:`rates`; None before one is."""
        found, left = self.searched(records, cell, end)
        if left or not math.isfinite(min(found.values())):
            return None
        errors = {
            lr: [loss_of(records.get(self.run(cell, end, lr, seed))) for seed in self.seeds]
            for lr in self.rates(records, cell, end)
        }
        done = [i for i in range(len(self.seeds)) if all(own[i] is not None for own in errors.values())]
        return Curve({lr: [own[i] for i in done] for lr, own in errors.items()}) if done else None

    def moved(self, records: Any, cell: tuple[str, str, str]) -> dict[tuple[str, str], str]:
        """Measure and optimizer → what a cell says; nothing before both ends are done."""
        base, target = (self.curve(records, cell, end) for end in (0, 1))
        if base is None or target is None:
            return {}
        drifts = [2 ** (there.best - here.best) for here, there in zip(base.alone(), target.alone(), strict=False)]
        inside = base.inside and target.inside
        ends = f" ({min(drifts):.2f} to {max(drifts):.2f})" if len(drifts) > 1 else ""
        told = {
            ("drift", cell[2]): f"× {2 ** (target.best - base.best):.2f}{ends}{'' if inside else ', edge'}",
            ("error", cell[2]): f"{math.exp(target.points[1].min()):.3g}",
        }
        for who, at in [(cell[2], base.best), *((f"{cell[2]}, untuned", math.log2(lr)) for lr in self._untuned(cell))]:
            regret = target.regret(at)
            told["regret", who] = "does not train" if math.isinf(regret) else percent(regret)
        return {
            key: text if len(drifts) == len(self.seeds) else f"{text}, seeds: {len(drifts)}" for key, text in told.items()
        }

    def numbers(self, records: Any) -> dict[str, str]:
        """A table of each measure, for pages: an optimizer a column."""
        told = {(*key, cell[1], cell[0]): text for cell in self.cells() for key, text in self.moved(records, cell).items()}
        drifts = [text for key, text in told.items() if key[0] == "drift"]
        said = {"done": str(len(drifts)), "edges": str(sum("edge" in text for text in drifts))}
        for measure in ("regret", "drift", "error"):
            who = dict.fromkeys(key[1] for key in told if key[0] == measure)
            rows = [
                [move, NAMES[p], *(told.get((measure, name, move, p), "–") for name in who)]
                for move, p in dict.fromkeys(key[2:] for key in told)
            ]
            said[measure] = "\n".join(table(["from base to target", "problem", *who], rows))
        sized = dict.fromkeys((move, p) for measure, who, move, p in told if measure == "regret" and who == "Adam (SP)")
        rows = [[m, NAMES[p], *(told.get(("regret", who, m, p), "–") for who in _ON_PAGES)] for m, p in sized]
        return {**said, "regret.sizes": "\n".join(table(["from base to target", "problem", *_ON_PAGES], rows))}

    def table(self, records: Any) -> str:
        """Regret, drift and least error, each in a table of its own."""
        said = self.numbers(records)
        return f"""# {self.about[0].upper()}{self.about[1:]}

{said["done"]} of {len(list(self.cells()))} moves are done. Seeds, unless a cell says otherwise: {len(self.seeds)}.

## Regret: what the base's best rate loses at the target, and what the law's does, by the mean of the seeds
{said["regret"]}

## Drift: the best rate at the target over that at the base, by the mean of the seeds, and the range of single ones
{said["drift"]}

## Least error at the target
{said["error"]}
"""


def _part(value: Any, share: float) -> Any:
    return tuple(max(2, 2 * round(n * share / 2)) for n in value) if isinstance(value, tuple) else int(value * share)


def _model(f: Mapping[str, Any]) -> dict[str, Any]:
    return {"n_layers": f["depth"], "n_modes": f["modes"], "hidden_channels": f["width"]}


def _near(found: Mapping[float, float]) -> list[float]:
    """The best rate and its neighbours by a factor of 2, of those that trained."""
    best = min(found, key=found.__getitem__)
    return [lr for lr in sorted(found) if 0.4 < lr / best < 2.5 and math.isfinite(found[lr])]
