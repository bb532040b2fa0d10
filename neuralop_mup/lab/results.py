"""What follows from the records of a study: the best points, curves and the summary."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from neuralop_mup.errors import MupError
from neuralop_mup.lab.outcome import first_failure, is_complete, lowest, score
from neuralop_mup.lab.records import params_key
from neuralop_mup.lab.study import Study, edge_of, is_number, the

Record = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """A study and the records of its runs.

    Attributes
    ----------
    study : Study
        The study that was run.
    records : list of dict
        One record per run, with ``size``, ``rule``, ``params``, ``seed``, ``outcome`` ("complete", "diverged", "refused" or
        "failed"), ``error``, ``loss``, ``metrics`` and ``seconds``.
    folder : Path
        Folder that contains the runs.

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
    def load(cls, folder: str | Path) -> "Results":
        """Load the results of the study that ran last in ``folder``.

        Parameters
        ----------
        folder : str or Path
            Folder of a sweep, a transfer or a call of :func:`neuralop_mup.tune`.

        Returns
        -------
        Results
            The results, in which tuples in the hyperparameters have become lists.

        Raises
        ------
        MupError
            If the folder contains no study, or if the study has no runs of its last size yet.

        Examples
        --------
        >>> from neuralop_mup.lab import Results
        >>> Results.load("runs").best
        {'lr': 0.5}
        """
        study, records = Study.load(folder)
        if not any(r["size"] == study.target for r in records):
            raise MupError(
                f"The study in {folder} has no runs of its last size yet. Repeat the command to resume the study."
            )
        return cls(study, records, Path(folder))

    # Records

    def cell(self, size: str | None, rule: str | None) -> list[Record]:
        """Return the records of a size under a rule.

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
        return [record for _, group in self._points(size, rule) for record in group]

    @cached_property
    def _grouped(self) -> dict[tuple[Any, ...], list[Record]]:
        """Map the size, the rule and the key of each point to its records, in record order."""
        groups = defaultdict(list)
        for record in self.records:
            groups[record["size"], record["rule"], params_key(record["params"])].append(record)
        return groups

    def _points(self, size: str | None, rule: str | None) -> list[tuple[dict[str, Any], list[Record]]]:
        """Return the hyperparameters and the records of each point. All rules share the runs of the base."""
        study = self.study
        rule = study.rules[0] if size == study.base != study.target else rule
        return [(group[0]["params"], group) for key, group in self._grouped.items() if key[:2] == (size, rule)]

    def carried(self, size: str | None, rule: str | None) -> list[Record]:
        """Return the records of a size with the transferred hyperparameters or, for the base, those of its best point.

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
        params = self._best(rule)[0] if size == self.study.base else self._centres.get(rule)
        key = params and params_key(params)
        return next((group for own, group in self._points(size, rule) if params_key(own) == key), [])

    @cached_property
    def _centres(self) -> dict[str | None, dict[str, Any] | None]:
        """Map each rule to the hyperparameters that are transferred from the base."""
        return {rule: self.study.best_params(self._points(self.study.base, rule)) for rule in self.study.rules}

    def _best(self, rule: str | None) -> tuple[dict[str, Any] | None, float]:
        """Return the best point of the base and its mean loss, or (None, inf) if no point completed for every seed."""
        return lowest(self._points(self.study.base, rule), len(self.study.seeds))

    # Numbers

    @property
    def best(self) -> dict[str, Any]:
        """The hyperparameters that are transferred: the point of the base with the lowest mean loss over seeds.

        Only points that completed for every seed are considered. In :func:`neuralop_mup.tune`, the learning rate is the
        minimum of a parabola through the best point and its neighbours.

        Returns
        -------
        dict
            Maps each hyperparameter to its value.

        Raises
        ------
        MupError
            If no point completed for every seed.

        Examples
        --------
        >>> results.best
        {'lr': 0.5}
        """
        best = self._centres[self.study.rules[0]]
        if best is None:
            what = the(self.study.base) if self.study.base else f"study {self.study.name!r}"
            raise MupError(
                f"No configuration of {what} completed for every seed, so no best one can be chosen."
                f"{first_failure(self.records)}"
            )
        return best

    @property
    def best_loss(self) -> float:
        """Mean loss of the best point, or infinity if no point completed for every seed."""
        return self._best(self.study.rules[0])[1]

    def points(self, size: str | None = None, rule: str | None = None) -> list[dict[str, Any]]:
        """Return one row for each point of a size under a rule, starting with the best point.

        Parameters
        ----------
        size, rule : str, optional
            Label of the size, and the rule. Default: the base and the first rule.

        Returns
        -------
        list of dict
            Rows with ``params``; the mean ``loss`` and its ``std`` over the completed seeds; the number of ``failed`` seeds;
            and the total ``seconds``.

        Examples
        --------
        >>> [(row["params"], row["loss"]) for row in results.points()]
        [({'lr': 0.5}, 1.05), ({'lr': 0.25}, 1.1125), ({'lr': 1.0}, 1.3)]
        """
        size, rule = (self.study.base if size is None else size), (self.study.rules[0] if rule is None else rule)
        points = sorted(self._points(size, rule), key=lambda point: score(point[1], len(self.study.seeds)))
        return [{"params": params, **_measured(group), "seconds": seconds(group)} for params, group in points]

    def curve(self, name: str = "lr", rule: str | None = None) -> dict[Any, list[float | None]]:
        """Return the losses of the base for each value of a hyperparameter, with all others at their best values.

        The dict is empty if the values of the hyperparameter are not numbers, or if no point completed for every seed.

        Parameters
        ----------
        name : str, default "lr"
            Name of the hyperparameter.
        rule : str, optional
            Name of the rule. Default: the first rule.

        Returns
        -------
        dict
            Maps each value to its losses, one per seed, with None for a failed run.

        Examples
        --------
        >>> results.curve()
        {0.25: [1.0625, 1.1625], 0.5: [1.0, 1.1], 1.0: [1.25, 1.35]}
        """
        rule = self.study.rules[0] if rule is None else rule
        best, grid = self._best(rule)[0], self.study.space.get(name)
        if best is None or not isinstance(grid, (list, tuple)) or not all(map(is_number, grid)):
            return {}
        losses = {}
        for params, group in self._points(self.study.base, rule):
            if {**params, name: best[name]} == best:
                of_seed = {r["seed"]: r["loss"] for r in group}
                losses[params[name]] = [of_seed.get(seed) for seed in self.study.seeds]
        return losses

    def summary(self) -> list[dict[str, Any]]:
        """Return one row for each rule and size.

        Returns
        -------
        list of dict
            Rows with the keys ``rule`` and ``size``; ``best``, the best point of the base (None for the target);
            ``at_edge``, whether any of its values is the first or last value of its grid; ``transferred``, the
            hyperparameters that are transferred from the base; ``transferred_loss``, ``transferred_std`` and
            ``transferred_test``, the mean and standard deviation of their losses and their mean test error at this size
            (infinite and NaN if no seed completed); ``trials`` and ``failed``, the number of these runs and of those that
            did not complete; and ``seconds``, the total time of all runs at this size.

        Examples
        --------
        >>> [(row["rule"], row["size"], row["transferred_loss"]) for row in results.summary()][-1]
        ('standard', 'target', 1.05)
        """
        return [self.row(rule, size) for rule in self.study.rules for size in self.study.sizes]

    def row(self, rule: str | None, size: str | None = None) -> dict[str, Any]:
        """Return the row of :meth:`summary` for a rule and a size.

        Parameters
        ----------
        rule : str or None
            A rule of the study.
        size : str, optional
            Label of the size. Default: the last size.

        Returns
        -------
        dict
            See :meth:`summary`.

        Examples
        --------
        >>> results.row("operator-norm")["transferred"]
        {'lr': 0.5}
        """
        study, size = self.study, self.study.target if size is None else size
        carried = self.carried(size, rule)
        found = _measured(carried)
        best = carried[0]["params"] if carried and size == study.base else {}
        return {
            "rule": rule,
            "size": size,
            "best": best or None,
            "at_edge": any(edge_of(value, study.space.get(name)) for name, value in best.items()),
            "transferred": self._centres.get(rule),
            "transferred_loss": found["loss"],
            "transferred_std": found["std"],
            "transferred_test": mean_metric(carried, "test_loss"),
            "failed": found["failed"],
            "trials": len(carried),
            "seconds": seconds(self.cell(size, rule)),
        }


def _measured(records: Sequence[Record]) -> dict[str, Any]:
    """Return the mean and standard deviation of the losses of the completed runs, and the number of failed runs."""
    losses = [record["loss"] for record in records if is_complete(record)]
    loss, std = (fmean(losses), pstdev(losses)) if losses else (math.inf, math.nan)
    return {"loss": loss, "std": std, "failed": len(records) - len(losses)}


def mean_metric(records: Iterable[Mapping[str, Any]], name: str) -> float | None:
    """Return the mean of a metric over the completed runs, or None if any of them does not have the metric."""
    values = [record["metrics"].get(name) for record in records if is_complete(record)]
    return fmean(values) if values and all(map(is_number, values)) else None


def seconds(records: Iterable[Mapping[str, Any]]) -> float:
    """Return the total seconds of runs: the training time if the train function returned it, else that of the whole run."""
    return sum(r["metrics"].get("seconds") or r["seconds"] for r in records)
