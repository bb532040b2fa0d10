"""Loss against a hyperparameter, gathered from records; nothing is drawn here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from neuralop_mup.tuning.optimum import Optimum, find_optimum
from neuralop_mup.tuning.outcome import by_point, is_complete

__all__ = ["Curve", "loss_curve"]


@dataclass(frozen=True)
class Curve:
    """Loss against a hyperparameter, summarised over seeds.

    Attributes
    ----------
    x, mean, low, high : list of float
        Values with every seed complete, and the mean, lowest and highest loss over seeds there.
    failed : list of float
        Values at which some seed failed.
    fitted : Optimum or None
        The best value between grid points, with its interval over seeds.
    """

    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    failed: list[float]
    fitted: Optimum | None = field(default=None, compare=False)

    @property
    def optimum(self) -> tuple[float, float] | None:
        """The value of lowest mean loss and that loss; None when every run failed."""
        if not self.x:
            return None
        best = min(range(len(self.x)), key=self.mean.__getitem__)
        return self.x[best], self.mean[best]


def loss_curve(records: Iterable[Mapping[str, Any]], name: str = "lr") -> Curve:
    """Collect one curve from records.

    With more searched hyperparameters than one, each value shows the best of the others (the lower envelope of their
    seed means). A point counts only where every seed completed, since a mean over the seeds that happened to survive
    flatters an unstable value.

    Parameters
    ----------
    records : iterable of dict
        Records of one size under one rule.
    name : str
        The hyperparameter that the curve runs over.
    """
    by_value: dict[float, list[float]] = {}
    failed = set()
    for group in by_point(r for r in records if name in r["params"]).values():
        value = float(group[0]["params"][name])
        group = sorted(group, key=lambda record: record["seed"])
        losses = [float(record["loss"]) for record in group if is_complete(record)]
        if len(losses) < len(group):
            failed.add(value)
        elif value not in by_value or fmean(losses) < fmean(by_value[value]):
            by_value[value] = losses
    xs = sorted(by_value)
    return Curve(
        xs,
        [fmean(by_value[x]) for x in xs],
        [min(by_value[x]) for x in xs],
        [max(by_value[x]) for x in xs],
        sorted(failed - set(xs)),
        find_optimum({**{x: [None] for x in failed}, **by_value}) if xs and xs[0] > 0 else None,
    )
