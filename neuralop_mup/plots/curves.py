"""Loss against learning rate, gathered from trial records; nothing is drawn here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any


@dataclass(frozen=True)
class Curve:
    """Loss against learning rate at one (stage, size, rule), summarised over seeds.

    Attributes
    ----------
    lr, mean, low, high : list of float
        Learning rates with at least one finished run, and the mean, lowest and highest loss over seeds there.
    failed : list of float
        Learning rates at which some seed failed.
    """

    lr: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    failed: list[float]

    @property
    def optimum(self) -> tuple[float, float] | None:
        """The learning rate of lowest mean loss and that loss; None when every run failed."""
        if not self.lr:
            return None
        best = min(range(len(self.lr)), key=self.mean.__getitem__)
        return self.lr[best], self.mean[best]


def loss_curve(records: Iterable[Mapping[str, Any]], stage: str, rule: str | None = None, name: str = "lr") -> Curve:
    """Collect one curve from trial records.

    With more searched hyperparameters than ``lr``, each learning rate shows the best of the others (the lower
    envelope of their seed means). A point counts only where every seed finished, since a mean over the
    seeds that happened to survive flatters an unstable learning rate.

    Parameters
    ----------
    records : iterable of dict
        Records as :func:`neuralop_mup.transfer` returns them.
    stage : {"proxy", "target", "verify"}
        Which stage to read.
    rule : str, optional
        Only the records under this rule; all of them by default.
    name : str
        The hyperparameter that the curve runs over, in the place of ``lr``.

    Returns
    -------
    Curve
    """
    points: dict[tuple, list[Mapping[str, Any]]] = {}
    for record in records:
        if record["stage"] == stage and (rule is None or record["rule"] == rule) and name in record["params"]:
            points.setdefault(tuple(sorted(record["params"].items())), []).append(record)
    by_lr: dict[float, list[float]] = {}
    failed = set()
    for key, group in points.items():
        lr = float(dict(key)[name])
        losses = [float(record["loss"]) for record in group if finished(record)]
        if len(losses) < len(group):
            failed.add(lr)
        elif lr not in by_lr or fmean(losses) < fmean(by_lr[lr]):
            by_lr[lr] = losses
    lrs = sorted(by_lr)
    return Curve(
        lrs,
        [fmean(by_lr[lr]) for lr in lrs],
        [min(by_lr[lr]) for lr in lrs],
        [max(by_lr[lr]) for lr in lrs],
        sorted(failed),
    )


def finished(record: Mapping[str, Any]) -> bool:
    """Whether a trial ended with a finite loss."""
    loss = record.get("loss")
    return record["state"] == "complete" and loss is not None and math.isfinite(loss)
