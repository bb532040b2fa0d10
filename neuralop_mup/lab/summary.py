"""What the records of a study say: optima, drift, regret, costs. Every number that is shown comes from here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from neuralop_mup.errors import MupError
from neuralop_mup.lab.optimum import Optimum, drift_between, find_optimum, regret_between
from neuralop_mup.lab.outcome import first_failure, is_complete, lowest, mean_and_std, mean_loss, score
from neuralop_mup.lab.search import edge_of, is_number, params_key
from neuralop_mup.lab.study import Point, Study, the

__all__ = ["Results", "by_point", "seconds"]

Record = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """A study and the records of its runs; everything here is computed from these.

    Attributes
    ----------
    study : Study
        What was asked.
    records : list of dict
        One per run: ``size``, ``rule``, ``params``, ``seed``, ``outcome`` ("complete", "diverged", "refused", "failed"),
        ``error``, ``loss``, ``metrics``, ``seconds``.
    folder : Path
        Where the runs are kept.

    Examples
    --------
    >>> import neuralop_mup as nm
    >>> def train(config):
    ...     return 1 + (config["lr"] - 0.5) ** 2 + 0.1 * config["seed"]
    >>> sizes = {"proxy": {"hidden_channels": 8}, "target": {"hidden_channels": 32}}
    >>> how = {"folder": "runs", "seeds": (0, 1), "n_workers": 1, "progress": False}
    >>> results = nm.transfer(train, **sizes, space={"lr": [0.25, 0.5, 1.0]}, **how)
    >>> {record["outcome"] for record in results.records}, results.best
    ({'complete'}, {'lr': 0.5})
    """

    study: Study
    records: list[Record]
    folder: Path

    @classmethod
    def load(cls, folder: str | Path) -> Results:
        """The study that was run last in ``folder``.

        Parameters
        ----------
        folder : str or Path
            Of a sweep, a transfer or :func:`neuralop_mup.tune`.

        Returns
        -------
        Results
            As they were returned, but that tuples in params are lists.

        Raises
        ------
        MupError
            If the folder holds none, or one whose last size has not been reached.

        Examples
        --------
        >>> from neuralop_mup.lab import Results
        >>> Results.load("runs").best
        {'lr': 0.5}
        """
        study, records = Study.load(folder)
        if not any(r["size"] == study.target for r in records):
            raise MupError(f"The study in {folder} has not reached its last size yet; run the same command to resume it.")
        return cls(study, records, Path(folder))

    # Records

    def of(self, points: Iterable[Point]) -> list[Record]:
        """Records of these points.

        Parameters
        ----------
        points : iterable of Point
            Of the study.

        Returns
        -------
        list of dict
            In the order of the records.

        Examples
        --------
        >>> len(results.of(results.study.tuning()[:2]))
        4
        """
        keys = {point.key for point in points}
        return [r for r in self.records if (r["size"], r["rule"], params_key(r["params"])) in keys]

    def cell(self, size: str | None, rule: str | None) -> list[Record]:
        """Records of a size that answer for a rule.

        Parameters
        ----------
        size, rule : str or None
            Label of the size, and the rule.

        Returns
        -------
        list of dict
            Records as in :attr:`records`.

        Examples
        --------
        >>> len(results.cell("proxy", "standard")), len(results.cell("target", "standard"))
        (6, 2)
        """
        rule = self.study.trained_as(size, rule)
        return [r for r in self.records if (r["size"], r["rule"]) == (size, rule)]

    def walk(self, size: str | None, rule: str | None) -> list[Record]:
        """Records over the whole space; none where it was not walked. What was carried between grid points is not of it.

        Parameters
        ----------
        size, rule : str or None
            Label of the size, and the rule.

        Returns
        -------
        list of dict
            Records as in :attr:`records`.

        Examples
        --------
        >>> len(results.walk("proxy", "operator-norm")), len(results.walk("target", "operator-norm"))
        (6, 0)
        """
        return self.cell(size, rule) if size == self.study.base else []

    def carried(self, size: str | None, rule: str | None) -> list[Record]:
        """Records at a size with the base's best values, of which the base itself has those of its grid; none if there are
        no such.

        Parameters
        ----------
        size, rule : str or None
            Label of the size, and the rule.

        Returns
        -------
        list of dict
            Records as in :attr:`records`.

        Examples
        --------
        >>> [record["params"] for record in results.carried("target", "operator-norm")]
        [{'lr': 0.5}, {'lr': 0.5}]
        """
        centre = self._best(self.walk(size, rule))[0] if size == self.study.base else self._centre(rule)
        return self.of([self.study.point(size, rule, centre)]) if centre else []

    def _centre(self, rule: str | None) -> dict[str, Any] | None:
        """What the base's runs carry under a rule."""
        groups = by_point(self.walk(self.study.base, rule)).values()
        return self.study.carried((group[0]["params"], group) for group in groups)

    # Optima

    def _best(self, records: Iterable[Record]) -> tuple[dict[str, Any] | None, float]:
        """Point of lowest mean loss, and that loss; (None, inf) when no point completed with every seed."""
        return lowest(((group[0]["params"], group) for group in by_point(records).values()), len(self.study.seeds))

    @property
    def best(self) -> dict[str, Any]:
        """What the base carries: its point of lowest mean loss over the seeds, of which one with a failed seed is none; in
        :func:`tune` and ``transfer`` with the learning rate of the parabola through it and its neighbours.

        Returns
        -------
        dict
            Hyperparameter → value.

        Raises
        ------
        MupError
            If no point completed with every seed.

        Examples
        --------
        >>> results.best
        {'lr': 0.5}
        """
        best = self._centre(self.study.rules[0])
        if best is None:
            what = the(self.study.base) if self.study.base else f"study {self.study.name!r}"
            raise MupError(
                f"No point of {what} completed with every seed, so there is no best one.{first_failure(self.records)}"
            )
        return best

    @property
    def best_loss(self) -> float:
        """Mean loss of the best point; infinite when no point completed with every seed."""
        return self._best(self.walk(self.study.base, self.study.rules[0]))[1]

    def points(self, size: str | None = None, rule: str | None = None) -> list[dict[str, Any]]:
        """One row per point of a size under a rule, best first; by default of the base.

        Parameters
        ----------
        size, rule : str, optional
            Label of the size, and the rule.

        Returns
        -------
        list of dict
            ``params``; mean ``loss`` and ``std`` of the seeds that completed; ``failed`` seeds; ``seconds`` of all.

        Examples
        --------
        >>> [(row["params"], row["loss"]) for row in results.points()]
        [({'lr': 0.5}, 1.05), ({'lr': 0.25}, 1.1125), ({'lr': 1.0}, 1.3)]
        """
        size, rule = (self.study.base if size is None else size), (self.study.rules[0] if rule is None else rule)
        rows = []
        for group in sorted(by_point(self.cell(size, rule)).values(), key=lambda group: score(group, len(self.study.seeds))):
            mean, std = mean_and_std([r["loss"] for r in group if is_complete(r)])
            failed = sum(not is_complete(r) for r in group)
            rows.append(
                {"params": group[0]["params"], "loss": mean, "std": std, "failed": failed, "seconds": seconds(group)}
            )
        return rows

    def curve(self, records: Sequence[Record], name: str = "lr") -> dict[Any, list[float | None]]:
        """Losses of each value of a hyperparameter, a seed an entry and None where it failed; others stay at their best.

        Nothing unless it has a grid of numbers of which one completed with every seed.

        Parameters
        ----------
        records : sequence of dict
            Of one size and rule, such as :meth:`walk` gives.
        name : str, default "lr"
            The hyperparameter.

        Returns
        -------
        dict
            Value → losses.

        Examples
        --------
        >>> results.curve(results.cell("proxy", "operator-norm"))
        {0.25: [1.0625, 1.1625], 0.5: [1.0, 1.1], 1.0: [1.25, 1.35]}
        """
        best, grid = self._best(records)[0], self.study.space.get(name)
        if best is None or not isinstance(grid, (list, tuple)) or not all(map(is_number, grid)):
            return {}
        losses = {}
        for group in by_point(records).values():
            if {**group[0]["params"], name: best[name]} == best:
                of_seed = {r["seed"]: r["loss"] if is_complete(r) else None for r in group}
                losses[group[0]["params"][name]] = [of_seed.get(seed) for seed in self.study.seeds]
        return losses

    def level(self, records: Sequence[Record], name: str = "lr") -> list[Any]:
        """Values of a hyperparameter, next to the best one, whose losses cannot be told from its by the spread over seeds.

        Two are level if their means differ by no more than the sum of their standard deviations. With the best value
        itself; none where there are no others, or one seed.

        Parameters
        ----------
        records : sequence of dict
            Of one size and rule, such as :meth:`walk` gives.
        name : str, default "lr"
            The hyperparameter.

        Returns
        -------
        list
            In ascending order.

        Examples
        --------
        >>> results.level(results.cell("proxy", "operator-norm"))
        [0.25, 0.5]
        """
        spread = {value: mean_and_std(row) for value, row in self.curve(records, name).items() if None not in row}
        if not spread or len(self.study.seeds) < 2:
            return []
        values = sorted(spread)
        low, reach = min(spread.values())
        middle = next(i for i, value in enumerate(values) if spread[value][0] == low)

        def is_level(value: Any) -> bool:
            return spread[value][0] - low <= reach + spread[value][1]

        below, above = takewhile(is_level, reversed(values[:middle])), takewhile(is_level, values[middle + 1 :])
        found = [*reversed(list(below)), values[middle], *above]
        return found if len(found) > 1 else []

    def optimum(self, records: Sequence[Record], name: str = "lr") -> Optimum | None:
        """The best value of a hyperparameter between grid points, with its interval over seeds; others stay at their best.

        None where the hyperparameter has no grid of positive numbers, or no value completed with every seed.

        Parameters
        ----------
        records : sequence of dict
            Of one size and rule, such as :meth:`walk` gives.
        name : str, default "lr"
            The hyperparameter.

        Returns
        -------
        Optimum or None
            With ``value``, its interval from ``low`` to ``high``, and ``note``, which says what is not given.

        Examples
        --------
        >>> 0.25 < results.optimum(results.cell("proxy", "operator-norm")).value < 0.5
        True
        """
        losses = self.curve(records, name)
        return find_optimum(losses) if losses and all(value > 0 for value in losses) else None

    def summary(self, cost: Callable[[str | None], float] | None = None) -> list[dict[str, Any]]:
        """One row for each rule and size.

        Parameters
        ----------
        cost : callable, optional
            Operations of one run at a size.

        Returns
        -------
        list of dict
            ``rule``, ``size``; ``best``, ``best_loss``, ``best_std``, ``best_test``: the best point found at this size (None
            where it was not searched); ``transferred``, with ``_loss``, ``_std``, ``_test``: the base's best point, trained
            here (infinite and nan where no seed completed); ``optimum``: the best learning rate between grid points, an
            ``Optimum``; ``drift``: the factor from the base's, and ``regret``: what transferring costs as a share of the
            best loss, paired by seed, each an ``Interval`` or None where it was not searched; ``level``: learning rates that
            cannot be told from the best; ``at_edge``: whether a best value is the first or last of its grid; ``failed`` and
            ``trials``: runs of the carried point that did not complete, and all; ``cost_seconds`` and ``cost_flops``:
            (tuning the base + the transferred point here) / searching here, in measured seconds and in operations;
            ``tuning_seconds`` and ``seconds`` of the two parts.

        Examples
        --------
        >>> [(row["rule"], row["size"], row["transferred_loss"]) for row in results.summary()][-1]
        ('standard', 'target', 1.05)
        """
        return [self.row(rule, size, cost) for rule in self.study.rules for size in self.study.sizes]

    def row(self, rule: str | None, size: str | None = None, cost: Callable[[Any], float] | None = None) -> dict[str, Any]:
        """The summary's row of a rule, at the last size by default.

        Parameters
        ----------
        rule : str or None
            One of the study's.
        size : str, optional
            Label of the size.
        cost : callable, optional
            As for :meth:`summary`.

        Returns
        -------
        dict
            As :meth:`summary` has it.

        Examples
        --------
        >>> results.row("operator-norm")["transferred"]
        {'lr': 0.5}
        """
        study, size = self.study, self.study.target if size is None else size
        here, at_base, carried = self.walk(size, rule), self.walk(study.base, rule), self.carried(size, rule)
        (best, best_loss), centre = self._best(here), self._centre(rule)
        at_best = by_point(here)[params_key(best)] if best else []
        optimum, searched = self.optimum(here), here or self.walk(size, "standard")
        row: dict[str, Any] = {
            "rule": rule,
            "size": size,
            "best": best,
            "best_loss": best_loss if best else None,
            **_spread("best", at_best),
            "transferred": centre,
            "transferred_loss": mean_loss(carried),
            **_spread("transferred", carried),
            "optimum": optimum,
            "drift": drift_between(self.optimum(at_base), optimum),
            "regret": regret_between(*map(_by_seed, (carried, at_best))),
            "level": self.level(here),
            "at_edge": bool(best) and any(edge_of(v, study.space.get(k)) for k, v in best.items()),
            "failed": sum(not is_complete(r) for r in carried),
            "trials": len(carried),
            "tuning_seconds": seconds(at_base),
            "seconds": seconds(carried),
            "cost_seconds": None,
            "cost_flops": None,
        }
        if size != study.base and centre and searched:
            row["cost_seconds"] = seconds([*at_base, *carried]) / (seconds(searched) or math.nan)
            if cost is not None:
                flops = cost(study.base) * len(at_base) + cost(size) * len(carried)
                row["cost_flops"] = flops / (cost(size) * len(searched))
        return row


def by_point(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Records grouped by point, in the order in which the points first appear."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(params_key(record["params"]), []).append(record)
    return groups


def seconds(records: Iterable[Mapping[str, Any]]) -> float:
    """Measured seconds of these runs: of training, where the train function told it, else of the whole run."""
    return sum(r["metrics"].get("seconds") or r["seconds"] for r in records)


def _by_seed(records: Iterable[Record]) -> list[float]:
    return [r["loss"] if is_complete(r) else math.inf for r in sorted(records, key=lambda r: r["seed"])]


def _spread(which: str, records: Sequence[Record]) -> dict[str, float | None]:
    done = [r for r in records if is_complete(r)]
    tests = [r["metrics"]["test_loss"] for r in done if is_number((r["metrics"] or {}).get("test_loss"))]
    return {
        f"{which}_std": mean_and_std([r["loss"] for r in done])[1] if done else None,
        f"{which}_test": sum(tests) / len(tests) if tests else None,
    }
