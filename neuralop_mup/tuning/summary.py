"""What the records of a study say: optima, drift, regret, costs. Every number that is shown comes from here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from neuralop_mup.errors import MupError
from neuralop_mup.tuning.optimum import Optimum, drift_between, find_optimum, regret_between
from neuralop_mup.tuning.outcome import Record, best_point, by_point, first_failure, is_complete, mean_and_std, point_loss
from neuralop_mup.tuning.space import edge_of, is_number, params_key
from neuralop_mup.tuning.study import Point, Study

__all__ = ["Results", "edge_of", "regret"]


@dataclass(frozen=True)
class Results:
    """A study and the records of its runs; everything here is computed from these.

    Attributes
    ----------
    study : Study
    records : list of dict
        One per run: ``size``, ``rule``, ``params``, ``seed``, ``outcome`` ("complete", "diverged", "refused", "pruned",
        "raised", "lost"), ``error``, ``loss``, ``metrics``, ``seconds``.
    folder : Path
    """

    study: Study
    records: list[Record]
    folder: Path

    @classmethod
    def load(cls, folder: str | Path) -> Results:
        """The study that was run in ``folder``, from ``config.json`` and ``results.jsonl``.

        Raises
        ------
        MupError
            If the folder holds none, or one whose last size has not been reached.
        """
        folder = Path(folder)
        try:
            study = Study.of(json.loads((folder / "config.json").read_text(encoding="utf-8")))
            text = (folder / "results.jsonl").read_text(encoding="utf-8")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise MupError(f"{folder} holds no study ({type(error).__name__}: {error}); run one there first.") from None
        # While a study runs, or if it was killed, the last line may be half written; it is not a record yet.
        records = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        if not any(r["size"] == study.target for r in records):
            raise MupError(f"The study in {folder} has not reached its last size yet; run the same command to resume it.")
        return cls(study, records, folder)

    # Records

    def of(self, points: Iterable[Point]) -> list[Record]:
        """Records of these points."""
        keys = {point.key for point in points}
        return [r for r in self.records if (r["size"], r["rule"], params_key(r["params"])) in keys]

    def cell(self, size: str | None, rule: str | None) -> list[Record]:
        """Records of a size that answer for a rule."""
        rule = self.study.trained_as(size, rule)
        return [r for r in self.records if (r["size"], r["rule"]) == (size, rule)]

    def walk(self, size: str | None, rule: str | None, name: str | None = None) -> list[Record]:
        """Records over the whole space, or over the grid of one hyperparameter; none where it was not walked."""
        study = self.study
        if study.search:
            return self.cell(size, rule) if size == study.base else []
        return self.of(study.walk(size, rule, name, self.centre(rule) or {}))

    def carried(self, size: str | None, rule: str | None, name: str | None = None) -> list[Record]:
        """Records at a size with the base's best values; none if there are no such."""
        best, _ = best_point(self.walk(self.study.base, rule, name), len(self.study.seeds))
        return self.of([self.study.point(size, rule, best)]) if best else []

    # Optima

    def centre(self, rule: str | None) -> dict[str, Any] | None:
        """The base's best point under a rule; None where no point completed with every seed."""
        study = self.study
        if study.swept is None:
            tuned = self.cell(study.base, rule)
        else:
            tuned = self.of([study.point(study.base, rule, {**study.defaults, "lr": lr}) for lr in study.space["lr"]])
        return best_point(tuned, len(study.seeds))[0]

    @property
    def best(self) -> dict[str, Any]:
        """The base's point of lowest mean loss over the seeds; a point with a failed seed does not compete.

        Raises
        ------
        MupError
            If no point completed with every seed.
        """
        best = self.centre(self.study.rules[0])
        if best is None:
            what = self.study.base or f"study {self.study.name!r}"
            raise MupError(
                f"No point of the {what} completed with every seed, so there is no best one.{first_failure(self.records)}"
            )
        return best

    @property
    def best_loss(self) -> float:
        """Mean loss of the best point; infinite when no point completed with every seed."""
        return best_point(self.cell(self.study.base, self.study.rules[0]), len(self.study.seeds))[1]

    def points(self, size: str | None = None, rule: str | None = None) -> list[dict[str, Any]]:
        """One row per point of a cell, best first; by default of the base.

        Returns
        -------
        list of dict
            ``params``; mean ``loss`` and ``std`` of the seeds that completed; ``failed`` seeds; ``seconds`` of all.
        """
        size, rule = (self.study.base if size is None else size), (self.study.rules[0] if rule is None else rule)
        n = len(self.study.seeds)
        rows = []
        for group in sorted(by_point(self.cell(size, rule)).values(), key=lambda g: point_loss(g, n)):
            mean, std = mean_and_std([r["loss"] for r in group if is_complete(r)])
            failed = sum(not is_complete(r) for r in group)
            seconds = sum(r["seconds"] for r in group)
            rows.append({"params": group[0]["params"], "loss": mean, "std": std, "failed": failed, "seconds": seconds})
        return rows

    def level(self, records: Sequence[Record], name: str = "lr") -> list[Any]:
        """Values of a hyperparameter, next to the best one, whose losses cannot be told from its by the spread over seeds.

        Two are level if their means differ by no more than the sum of their standard deviations. With the best value
        itself; other hyperparameters stay at their best.
        """
        best, losses = self._along(records, name)
        spread = {value: mean_and_std(row) for value, row in losses.items() if None not in row}
        if best is None or len(self.study.seeds) < 2:
            return []

        def is_level(value: Any) -> bool:
            return spread[value][0] - spread[best][0] <= spread[best][1] + spread[value][1]

        values = sorted(spread)
        middle = values.index(best)
        below, above = takewhile(is_level, reversed(values[:middle])), takewhile(is_level, values[middle + 1 :])
        found = [*reversed(list(below)), best, *above]
        return found if len(found) > 1 else []

    def optimum(self, records: Sequence[Record], name: str = "lr") -> Optimum | None:
        """The best value of a hyperparameter between grid points, with its interval over seeds; others stay at their best.

        None where the hyperparameter has no grid of positive numbers, or no value completed with every seed.
        """
        _, losses = self._along(records, name)
        return find_optimum(losses) if losses and all(value > 0 for value in losses) else None

    def _along(self, records: Sequence[Record], name: str) -> tuple[Any, dict[Any, list[float | None]]]:
        """The best value of a hyperparameter, and the losses of each value, a seed an entry, where the others are at their
        best. None and nothing unless it has a grid of numbers of which one completed with every seed."""
        best, _ = best_point(records, len(self.study.seeds))
        grid = self.study.space.get(name)
        if best is None or not isinstance(grid, (list, tuple)) or not all(map(is_number, grid)):
            return None, {}
        losses = {}
        for group in by_point(records).values():
            if {**group[0]["params"], name: best[name]} == best:
                of_seed = {r["seed"]: r["loss"] if is_complete(r) else None for r in group}
                losses[group[0]["params"][name]] = [of_seed.get(seed) for seed in self.study.seeds]
        return best[name], losses

    def summary(self, cost: Callable[[str | None], float] | None = None) -> list[dict[str, Any]]:
        """One row for each way of walking, rule and size.

        Parameters
        ----------
        cost : callable, optional
            Operations of one run at a size; ``experiments.report.run_cost(study)`` for the runs of this package.

        Returns
        -------
        list of dict
            ``walked`` (the hyperparameter, or None for the whole space), ``rule``, ``size``; ``best``, ``best_loss``,
            ``best_std``, ``best_test``: the best point found at this size (None where it was not searched);
            ``transferred``, with ``_loss``, ``_std``, ``_test``: the base's best point, trained here (infinite and nan where
            no seed completed); ``drift``: grid steps of the hyperparameter (of ``lr`` for the whole space) from the
            transferred point up to the best one; ``regret``: what transferring costs, as a fraction of the best loss,
            infinite if a seed of the transferred point failed; ``optimum``: the best value between grid points, an
            ``Optimum``; ``drift_log2`` from the base's and ``regret_paired``, each an
            ``Interval`` over seeds; ``level``: values that cannot be told from the best;
            ``at_edge``: whether the best value is the first or last of its grid; ``failed`` and ``trials``: runs that did
            not complete, and all; ``cost_seconds`` and ``cost_flops``: (tuning the base + the transferred point here) /
            searching here, in measured seconds and in operations; ``tuning_seconds`` and ``seconds`` of the two parts.
        """
        study = self.study
        return [self._row(n, r, s, cost) for n in study.walks for r in study.rules for s in study.sizes]

    def _row(self, name: str | None, rule: str | None, size: str | None, cost: Callable | None) -> dict[str, Any]:
        study, n = self.study, len(self.study.seeds)
        here, at_base, carried = (
            self.walk(size, rule, name),
            self.walk(study.base, rule, name),
            self.carried(size, rule, name),
        )
        best, best_loss = best_point(here, n)
        centre, _ = best_point(at_base, n)
        walked = name or "lr"
        row: dict[str, Any] = {
            "walked": name,
            "rule": rule,
            "size": size,
            "best": best,
            "best_loss": best_loss if best else None,
            **_spread("best", [r for r in here if best and params_key(r["params"]) == params_key(best)]),
            "transferred": centre,
            "transferred_loss": mean_and_std([r["loss"] for r in carried if is_complete(r)])[0],
            **_spread("transferred", carried),
            "drift": None,
            "regret": None,
            "optimum": self.optimum(here, walked),
            "drift_log2": None,
            "regret_paired": None,
            "level": self.level(here, walked),
            "at_edge": bool(best) and any(edge_of(v, study.space.get(k)) for k, v in best.items() if name in (None, k)),
            "failed": sum(not is_complete(r) for r in carried),
            "trials": len(carried),
            "tuning_seconds": seconds(at_base),
            "seconds": seconds(carried),
            "cost_seconds": None,
            "cost_flops": None,
        }
        if best and centre:
            row["drift"] = _steps(study.space.get(walked), centre.get(walked), best.get(walked))
            row["regret"] = regret(point_loss(carried, n), best_loss)
            row["drift_log2"] = drift_between(self.optimum(at_base, walked), row["optimum"])
            at_best = [r for r in here if params_key(r["params"]) == params_key(best)]
            row["regret_paired"] = regret_between(*(_by_seed(records) for records in (carried, at_best)))
        searched = here or self.walk(size, "standard", name)
        if size != study.base and centre and searched:
            row["cost_seconds"] = seconds([*at_base, *carried]) / (seconds(searched) or math.nan)
            if cost is not None:
                flops = cost(study.base) * len(at_base) + cost(size) * len(carried)
                row["cost_flops"] = flops / (cost(size) * len(searched))
        return row

    def row(self, rule: str | None, size: str | None = None, name: str | None = None) -> dict[str, Any]:
        """The summary's row of a rule, at the last size by default."""
        return self._row(name, rule, self.study.target if size is None else size, None)


def _by_seed(records: Iterable[Record]) -> list[float]:
    return [r["loss"] if is_complete(r) else math.inf for r in sorted(records, key=lambda r: r["seed"])]


def seconds(records: Iterable[Record]) -> float:
    """Measured seconds of these runs: of training, where the train function told it, else of the whole run."""
    return sum(r["metrics"].get("seconds") or r["seconds"] for r in records)


def regret(transferred_loss: float, best_loss: float) -> float:
    """What transferring instead of tuning costs, as a fraction of the best loss; a negative loss counts by its size.

    A best loss of 0 leaves nothing to be a fraction of: then it is 0 or infinite.
    """
    if transferred_loss == best_loss:
        return 0.0
    return (transferred_loss - best_loss) / abs(best_loss) if best_loss else math.inf


def _steps(grid: Any, start: Any, end: Any) -> int | None:
    """Grid steps upwards; None unless it is a grid of numbers."""
    if not isinstance(grid, (list, tuple)) or not all(map(is_number, grid)) or start is None or end is None:
        return None
    grid = sorted(grid)
    return grid.index(end) - grid.index(start)


def _spread(which: str, records: Sequence[Record]) -> dict[str, float | None]:
    done = [r for r in records if is_complete(r)]
    tests = [r["metrics"]["test_loss"] for r in done if is_number((r["metrics"] or {}).get("test_loss"))]
    return {
        f"{which}_std": mean_and_std([r["loss"] for r in done])[1] if done else None,
        f"{which}_test": sum(tests) / len(tests) if tests else None,
    }
