"""Does a tuned learning rate carry over? The best rate at a base and at a target, for each rule, and what carrying it loses.

A move changes one thing between base and target: width, modes, depth, both sizes at once, samples, points of the grid, or
batch. At both ends the best rate is searched with one seed (:func:`experiments.curves.searched`); then all seeds are trained
at the rates around it. Under μP the model at the target is parametrized from the base; under SP it is neuralop's own.

Drift is the best rate at the target over that at the base; regret is what the base's best rate loses at the target.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from experiments.curves import Curve, searched
from experiments.law import CENTRE, PROBLEMS
from experiments.pages import NAMES, percent, table
from experiments.training import run_of
from neuralop_mup.optim.matrix.soap import usual_lr
from neuralop_mup.tuning.outcome import is_complete
from neuralop_mup.tuning.records import Run

__all__ = ["MOVES", "Transfer"]

#: Move → the base's and the target's share of what the problem's centre has.
MOVES: dict[str, tuple[dict[str, float], dict[str, float]]] = {
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
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Transfer:
    """The experiment: every move on every problem, under every optimizer."""

    problems: tuple[str, ...] = ("korteweg-de-vries", "gray-scott", "darcy")
    moves: tuple[str, ...] = tuple(MOVES)
    optimizers: tuple[str, ...] = tuple(OPTIMIZERS)
    seeds: tuple[int, ...] = SEEDS
    small: bool = False
    _runs: dict[tuple, Run] = field(default_factory=dict, compare=False, repr=False)

    about = "whether the best learning rate carries over width, modes, depth, samples, points and batch"

    def tiny(self) -> Transfer:
        """One problem, two moves, small models and short runs."""
        moves, optimizers = tuple(MOVES)[:2], ("MuSOAP", "Adam (SP)")
        return replace(self, problems=("burgers",), moves=moves, optimizers=optimizers, seeds=(0,), small=True, _runs={})

    def cells(self) -> Iterator[tuple[str, str, str]]:
        """Problem, move and optimizer, in the order in which they are trained."""
        yield from ((p, move, who) for move in self.moves for who in self.optimizers for p in self.problems)

    def run(self, cell: tuple[str, str, str], end: int, lr: float, seed: int) -> Run:
        """A run at the base (0) or at the target (1) of a cell."""
        if (cell, end, lr, seed) not in self._runs:
            problem, move, who = cell
            base, f = self._size(problem, MOVES[move][0]), self._size(problem, MOVES[move][end])
            less = {"n_train": 40, "n_val": 20, "n_test": 20} if self.small else {"n_train": f["samples"]}
            config = {
                "problem": problem,
                "data": {"grid": f["grid"], **less},
                "steps": 50 if self.small else 300,
                "batch_size": f["batch"],
                "model": _model(f),
                "base": _model(base),
                **OPTIMIZERS[who][0],
                "lr": lr,
                "seed": seed,
            }
            labels = {"size": f"{problem}, {move}, {who}, {('base', 'target')[end]}", "params": {"lr": lr}, "seed": seed}
            self._runs[cell, end, lr, seed] = run_of(config, **labels)
        return self._runs[cell, end, lr, seed]

    def _size(self, problem: str, shares: Mapping[str, float]) -> dict[str, Any]:
        own = {**CENTRE, **PROBLEMS[problem], **({"width": 8, "grid": 16, "modes": (8,)} if self.small else {})}
        for name, share in shares.items():
            value = own[name]
            own[name] = tuple(int(n * share) for n in value) if isinstance(value, tuple) else int(value * share)
        return own

    def error(self, records: Any, run: Run) -> float | None:
        """Validation error, infinite where it did not train; None where it is not done."""
        record = records.get(run)
        return None if record is None else record["loss"] if is_complete(record) else math.inf

    def searched(self, records: Any, cell: tuple[str, str, str], end: int) -> tuple[dict[float, float], list[float]]:
        """The first seed's search at an end."""
        start = OPTIMIZERS[cell[2]][1] or usual_lr(300)
        return searched(lambda lr: self.error(records, self.run(cell, end, lr, self.seeds[0])), start)

    def wanted(self, records: Any) -> Iterator[Run]:
        """The runs that are missing: both searches of a cell, then its further seeds."""
        for cell in self.cells():
            for end in (0, 1):
                found, left = self.searched(records, cell, end)
                asked = [(lr, self.seeds[0]) for lr in left] or [(lr, s) for s in self.seeds[1:] for lr in _near(found)]
                runs = (self.run(cell, end, *one) for one in asked)
                yield from (run for run in runs if records.get(run) is None)

    def curve(self, records: Any, cell: tuple[str, str, str], end: int) -> Curve | None:
        """Errors of the seeds that are done at all rates near the best; None before the search is."""
        found, left = self.searched(records, cell, end)
        if left or not math.isfinite(min(found.values())):
            return None
        errors = {lr: [self.error(records, self.run(cell, end, lr, seed)) for seed in self.seeds] for lr in _near(found)}
        done = [i for i in range(len(self.seeds)) if all(own[i] is not None for own in errors.values())]
        return Curve({lr: [own[i] for i in done] for lr, own in errors.items()})

    def table(self, records: Any) -> str:
        """Drift and regret of every cell."""
        rows = []
        for cell in self.cells():
            base, target = (self.curve(records, cell, end) for end in (0, 1))
            if base is not None and target is not None:
                drift, regret = 2 ** (target.best - base.best), target.regret(base.best)
                lost = "does not train" if math.isinf(regret) else percent(regret)
                least = f"{math.exp(target.points[1].min()):.4g}"
                rows.append([cell[1], NAMES[cell[0]], cell[2], f"× {drift:.2f}", lost, least, str(target.seeds)])
        said = (
            f"{len(rows)} of {len(list(self.cells()))} moves are done. Drift: the best learning rate at the target over "
            "that at the base. Regret: what the base's best rate loses at the target, by the mean of the seeds."
        )
        heads = ["move", "problem", "optimizer", "drift", "regret", "least error at the target", "seeds"]
        return "\n".join([f"# {self.about[0].upper()}{self.about[1:]}", "", said, *table(heads, rows)]) + "\n"


def _model(f: Mapping[str, Any]) -> dict[str, Any]:
    return {"n_layers": f["depth"], "n_modes": f["modes"], "hidden_channels": f["width"]}


def _near(found: Mapping[float, float]) -> list[float]:
    """The best rate and its neighbours by a factor of 2, of those that trained."""
    best = min(found, key=found.__getitem__)
    return [lr for lr in sorted(found) if 0.4 < lr / best < 2.5 and math.isfinite(found[lr])]
