"""What the records of an experiment say: optima, drift, regret and costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from neuralop_mup.reproduce.experiment import Experiment
from neuralop_mup.training import estimate_flops
from neuralop_mup.tuning.records import Record, best_point, mean_and_std, point_loss
from neuralop_mup.tuning.transfers import is_at_edge, regret

__all__ = ["Reproduction"]


@dataclass(frozen=True)
class Reproduction:
    """An experiment and the records of its trials; everything is computed from these.

    Attributes
    ----------
    experiment : Experiment
    records : list of dict
        One per trial; ``size`` and ``stage`` are the size's label.
    folder : Path
    """

    experiment: Experiment
    records: list[Record]
    folder: Path

    def select(self, index: int, rule: str, points: Iterable[Mapping[str, Any]]) -> list[Record]:
        """Records of these points at a size, under a rule."""
        e, points = self.experiment, [dict(point) for point in points]
        label, rule = e.label(index), e.trained_as(index, rule)
        return [r for r in self.records if (r["size"], r["rule"]) == (label, rule) and r["params"] in points]

    def centres(self) -> dict[str, dict[str, Any] | None]:
        """The point of the best learning rate at the base, for each rule; None where every one failed."""
        e = self.experiment
        tuned = [{**e.defaults, "lr": lr} for lr in e.grids["lr"]]
        return {rule: best_point(self.select(0, rule, tuned), len(e.seeds))[0] for rule in e.rules}

    @cached_property
    def _centres(self) -> dict[str, dict[str, Any]]:
        return {rule: point or {} for rule, point in self.centres().items()}

    def sweep(self, index: int, rule: str, name: str) -> list[Record]:
        """Records over the grid of one hyperparameter, the others at their place; none if it was not walked."""
        e = self.experiment
        if index > 0 and rule not in e.searched:
            return []
        return self.select(index, rule, [{**self._centres[rule], name: value} for value in e.grids[name]])

    def carried(self, index: int, rule: str, name: str) -> list[Record]:
        """Records at a size with the base's best value; none if every value failed at the base."""
        best, _ = best_point(self.sweep(0, rule, name), len(self.experiment.seeds))
        return self.select(index, rule, [best]) if best else []

    def rows(self) -> list[dict[str, Any]]:
        """One row for each hyperparameter, rule and size.

        Returns
        -------
        list of dict
            ``hyperparameter``, ``rule``, ``size``, ``index``; ``best``, ``best_loss``, ``best_std``, ``best_test`` on
            the grid at this size (None if it was not walked); ``transferred``: the base's best value, with
            ``transferred_loss``, ``_std``, ``_test`` here; ``drift``: grid steps from there up to ``best``; ``regret``:
            transferred loss / best loss - 1; ``at_edge`` of the grid; ``failed`` and ``trials``; ``cost_flops`` and
            ``cost_seconds``: (walking the base + one run here) / walking the grid here, which for a rule that was
            not walked here is that under "standard". None at the base, where nothing is transferred.
        """
        e = self.experiment
        return [self._row(n, r, i) for n in e.swept for r in e.rules for i in range(len(e.models))]

    def _row(self, name: str, rule: str, index: int) -> dict[str, Any]:
        e, n = self.experiment, len(self.experiment.seeds)
        grid = list(e.grids[name])
        here = self.sweep(index, rule, name)
        best, best_loss = best_point(here, n)
        centre, _ = best_point(self.sweep(0, rule, name), n)
        carried = self.carried(index, rule, name)
        searched = here or self.sweep(index, "standard", name)
        row: dict[str, Any] = {
            "hyperparameter": name,
            "rule": rule,
            "size": e.label(index),
            "index": index,
            "best": best[name] if best else None,
            "best_loss": best_loss if best else None,
            **_spread("best", [r for r in here if r["params"] == best]),
            "transferred": centre[name] if centre else None,
            "transferred_loss": point_loss(carried, n),
            **_spread("transferred", carried),
            "drift": None,
            "regret": None,
            "at_edge": bool(best) and is_at_edge(best[name], grid),
            "failed": sum(r["state"] == "failed" for r in [*here, *(r for r in carried if r not in here)]),
            "trials": len(here) or len(carried),
            "cost_flops": None,
            "cost_seconds": None,
        }
        if best and centre:
            row["drift"] = grid.index(best[name]) - grid.index(centre[name])
            row["regret"] = regret(row["transferred_loss"], best_loss)
        if index > 0 and centre:
            spent = [*self.sweep(0, rule, name), *carried]
            row["cost_flops"] = _ratio(self.flops(spent), self.flops(searched))
            row["cost_seconds"] = _ratio(seconds(spent), seconds(searched))
        return row

    @cached_property
    def _flops(self) -> dict[str, float]:
        """Operations of one run at each size; no hyperparameter that is walked changes them."""
        e = self.experiment
        point = {**e.defaults, "lr": e.grids["lr"][0]}
        return {e.label(i): estimate_flops(e.config(i, e.rules[0], point, e.seeds[0])) for i in range(len(e.models))}

    def flops(self, records: Sequence[Record]) -> float:
        """Predicted floating-point operations of these runs."""
        return sum(self._flops[r["size"]] for r in records)


def seconds(records: Iterable[Record]) -> float:
    """Measured seconds of these runs: of training, where the train function told it, else of the whole trial."""
    return sum(r["metrics"].get("seconds", r["seconds"]) for r in records)


def _spread(which: str, records: Sequence[Record]) -> dict[str, float | None]:
    done = [r for r in records if r["state"] == "complete"]
    tests = [r["metrics"]["test_loss"] for r in done if r["metrics"].get("test_loss") is not None]
    return {
        f"{which}_std": mean_and_std([r["loss"] for r in done])[1] if done else None,
        f"{which}_test": sum(tests) / len(tests) if tests else None,
    }


def _ratio(spent: float, searched: float) -> float | None:
    return spent / searched if searched else None
