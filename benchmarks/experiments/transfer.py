"""Transfer of a tuned learning rate: the best rates of a small and a large model, and the regret of the small model's rate.

A move changes one thing between base and target: width, modes, depth, both sizes, samples, grid points or batch size. At
both ends the best rate is searched with one seed (:func:`experiments.curves.searched`). Then all seeds are trained at the
rates around it. The target is also trained around the best rate of the base, and at the default rate. Under μP the target
is parametrized from the base. Under SP it is neuralop's own model.

The drift is the best rate at the target divided by that at the base. The regret is the increase of the error at the target
if it is trained with the best rate of the base.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from experiments.curves import Curve, Search, rounded, searched
from experiments.experiment import Experiment
from experiments.law_settings import CENTRE, PROBLEMS, scaled
from experiments.pages import NAMES, percent, table
from experiments.records import loss_of, missing
from experiments.training import remembered, run_of
from neuralop_mup.lab.records import Run
from neuralop_mup.optim.musoap.optimizer import default_lr

#: Entry of a problem → factor relative to its centre, or another entry of the problem.
Factors = Mapping[str, float | str]
#: Move → factors of the base and of the target.
MOVES = {
    "width, 8 times": ({"width": 0.5}, {"width": 4}),
    "modes, 4 times": ({"modes": 0.25}, {}),
    "width 4 times, modes 4 times": ({"width": 0.5, "modes": 0.25}, {"width": 2}),
    "depth, 4 times": ({"depth": 0.5}, {"depth": 2}),
    "samples, 4 times": ({"samples": 0.25}, {}),
    "points, twice an axis": ({}, {"grid": 2}),
    "batch, 8 times": ({"batch": 0.25}, {"batch": 2}),
}
#: Optimizer → settings, and the initial rate of a search; None is the default of MuSOAP.
OPTIMIZERS = {
    "MuSOAP": ({"optimizer": "soap", "kernel_init": "small"}, None),
    "MuAdam": ({"optimizer": "adam", "kernel_init": "small"}, 8e-3),
    "Adam (SP)": ({"optimizer": "adam", "rule": "standard"}, 4e-3),
    "MuAdam, log-modes": ({"optimizer": "adam", "kernel_init": "small", "rule": "log-modes"}, 8e-3),
}
#: Columns of the table on the page.
_COLUMNS = ("MuSOAP", "MuSOAP, untuned", "MuAdam", "Adam (SP)")

#: Problem, move and optimizer.
Cell = tuple[str, str, str]


@dataclass(frozen=True)
class Transfer(Experiment):
    """Measure every move on every problem, with every optimizer.

    Attributes
    ----------
    about : str
    problems : mapping of str to dict
        Problem → entries of its centre: samples, grid, modes, width, batch and steps; ``data`` (further arguments of the
        problem); ``settings`` of its runs, and those only ``under_mup``.
    moves, optimizers : mapping
        As :data:`MOVES` and :data:`OPTIMIZERS`.
    only_moves : mapping of str to tuple of str, optional
        Optimizer → moves; by default all.
    seeds : tuple of int
    """

    about: str
    problems: Mapping[str, Mapping[str, Any]]
    moves: Mapping[str, tuple[Factors, Factors]] = field(default_factory=lambda: MOVES)
    optimizers: Mapping[str, tuple[dict[str, Any], float | None]] = field(default_factory=lambda: OPTIMIZERS)
    only_moves: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)

    notes = (
        "Regret: error at the target with the best rate of the base, divided by the lowest error, minus 1. Drift: best rate "
        "at the target divided by that at the base, with the range over single seeds."
    )

    def tiny(self) -> Transfer:
        """Return the last move with small models and all optimizers."""
        size = {"width": 8, "grid": 16, "modes": (16, 16), "fewest": (4, 4), "steps": 50}
        problem = {**PROBLEMS["darcy"], **size, "samples": 40, "data": {"n_val": 20, "n_test": 20}}
        return replace(
            self, problems={"darcy": problem}, moves=dict([list(self.moves.items())[-1]]), only_moves={}, seeds=(0,)
        )

    def cells(self) -> Iterator[Cell]:
        """Return problems, moves and optimizers, in the order of training."""
        return (
            (problem, move, optimizer)
            for move, optimizer, problem in product(self.moves, self.optimizers, self.problems)
            if move in self.only_moves.get(optimizer, self.moves)
        )

    @remembered
    def run(self, cell: Cell, end: int, lr: float, seed: int) -> Run:
        """Return a run at the base (``end=0``) or at the target (``end=1``)."""
        problem, move, optimizer = cell
        base, f = (self._entries(problem, self.moves[move][which]) for which in (0, end))
        settings = self.optimizers[optimizer][0]
        if settings.get("rule") != "standard":
            settings = {**settings, **f.get("under_mup", {})}
        if end == 0 and "kernel_init" not in settings:  # at the base all rules are SP, bit for bit, so they share their runs
            settings = {**settings, "rule": "standard"}
        config = {
            "problem": problem,
            "data": {"grid": f["grid"], **f.get("data", {}), "n_train": f["samples"]},
            "steps": f["steps"],
            "batch_size": f["batch"],
            "model": _model(f),
            "base": _model(base),
            **settings,
            **f.get("settings", {}),
            "lr": lr,
            "seed": seed,
        }
        size = f"{problem}, {move}, {optimizer}, {('base', 'target')[end]}"
        return run_of(config, size=size, params={"lr": lr}, seed=seed)

    def _entries(self, problem: str, factors: Factors) -> dict[str, Any]:
        entries = {**CENTRE, **self.problems[problem]}
        for name, factor in factors.items():
            entries[name] = entries[factor] if isinstance(factor, str) else scaled(entries[name], factor)
        return entries

    def searched(self, records: Any, cell: Cell, end: int) -> Search:
        """Return the state of the search with the first seed."""
        start = self.optimizers[cell[2]][1] or self._default_rates(cell)[0]
        return searched(lambda lr: loss_of(records.get(self.run(cell, end, lr, self.seeds[0]))), start)

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """Return the missing runs: both searches of a cell, then its further seeds."""
        for cell, end in product(self.cells(), (0, 1)):
            first_seed = [(lr, self.seeds[0]) for lr in self.searched(records, cell, end).missing]
            runs = first_seed or product(self.rates(records, cell, end), self.seeds)
            yield from missing(records, [self.run(cell, end, *run) for run in runs])

    def rates(self, records: Any, cell: Cell, end: int) -> list[float]:
        """Return the rates that all seeds use after the search."""
        search = self.searched(records, cell, end)
        rates = [lr for lr, error in search.errors.items() if 0.4 < lr / search.best < 2.5 and math.isfinite(error)]
        if end == 1 and (base := self.curve(records, cell, 0)) is not None:
            below = [lr for lr in base.errors if math.log2(lr) <= base.best]
            above = [lr for lr in base.errors if math.log2(lr) >= base.best]
            rates += [max(below), min(above), *self._default_rates(cell)]
        return sorted(set(rates))

    def _default_rates(self, cell: Cell) -> list[float]:
        """Return a list with the default learning rate, or an empty list if the optimizer has none."""
        return [rounded(default_lr(self._entries(cell[0], {})["steps"]))] if self.optimizers[cell[2]][1] is None else []

    def curve(self, records: Any, cell: Cell, end: int) -> Curve | None:
        """Return the errors of the seeds that have a record at all :meth:`rates`, or None if there is none."""
        search = self.searched(records, cell, end)
        if not math.isfinite(search.errors.get(search.best, math.inf)):
            return None
        errors = {
            lr: [loss_of(records.get(self.run(cell, end, lr, seed))) for seed in self.seeds]
            for lr in self.rates(records, cell, end)
        }
        done = [i for i in range(len(self.seeds)) if all(own[i] is not None for own in errors.values())]
        return Curve({lr: [own[i] for i in done] for lr, own in errors.items()}) if done else None

    def measures(self, records: Any, cell: Cell) -> dict[tuple[str, str], str]:
        """Return drift and regrets of a cell by measure and optimizer, or nothing until both ends have a seed."""
        base, target = (self.curve(records, cell, end) for end in (0, 1))
        if base is None or target is None:
            return {}
        drifts = [2 ** (there.best - here.best) for here, there in zip(base.by_seed(), target.by_seed(), strict=False)]
        spread = f" ({min(drifts):.2f} to {max(drifts):.2f})" if len(drifts) > 1 else ""
        edge = "" if base.inside and target.inside else ", edge"
        seeds = "" if len(drifts) == len(self.seeds) else f", seeds: {len(drifts)}"
        found = {("drift", cell[2]): f"× {2 ** (target.best - base.best):.2f}{spread}{edge}{seeds}"}
        untuned = [(f"{cell[2]}, untuned", math.log2(lr)) for lr in self._default_rates(cell)]
        for name, at in [(cell[2], base.best), *untuned]:
            regret = target.regret(at)
            found["regret", name] = ("does not train" if math.isinf(regret) else percent(regret)) + seeds
        return found

    def numbers(self, records: Any) -> dict[str, str]:
        """Return a table of each measure with a column for each optimizer."""
        texts = {}
        for problem, move, optimizer in self.cells():
            for (measure, name), text in self.measures(records, (problem, move, optimizer)).items():
                texts[measure, name, move, problem] = text

        def measure_table(measure: str, names: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
            cells = [[move, NAMES[p], *(texts.get((measure, n, move, p), "–") for n in names)] for move, p in rows]
            return table(["from base to target", "problem", *names], cells)

        drifts = [text for key, text in texts.items() if key[0] == "drift"]
        found = {"done": str(len(drifts)), "edges": str(sum("edge" in text for text in drifts))}
        for measure in ("regret", "drift"):
            names = dict.fromkeys(key[1] for key in texts if key[0] == measure)
            found[measure] = measure_table(measure, names, dict.fromkeys(key[2:] for key in texts))
        sizes = dict.fromkeys(key[2:] for key in texts if key[:2] == ("regret", "Adam (SP)"))
        return {**found, "regret.sizes": measure_table("regret", _COLUMNS, sizes)}


def _model(f: Mapping[str, Any]) -> dict[str, Any]:
    return {"n_layers": f["depth"], "n_modes": f["modes"], "hidden_channels": f["width"]}
