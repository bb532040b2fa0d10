"""What the records of a study say. Every number that is shown comes from here."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from neuralop_mup.errors import MupError
from neuralop_mup.lab.outcome import first_failure, is_complete, lowest, mean_and_std, score
from neuralop_mup.lab.records import params_key
from neuralop_mup.lab.study import Study, edge_of, is_number, the

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
    def load(cls, folder: str | Path) -> "Results":
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
        return [record for group in self._points(size, rule).values() for record in group]

    @cached_property
    def _grouped(self) -> dict[tuple[str | None, str | None], dict[str, list[Record]]]:
        """Size and rule → point → records, in the order in which they first appear."""
        groups: dict[tuple[str | None, str | None], dict[str, list[Record]]] = {}
        for record in self.records:
            points = groups.setdefault((record["size"], record["rule"]), {})
            points.setdefault(params_key(record["params"]), []).append(record)
        return groups

    def _points(self, size: str | None, rule: str | None) -> dict[str, list[Record]]:
        if (size, rule) not in self._grouped:
            rule = self.study.trained_as(size, rule)
        return self._grouped.get((size, rule), {})

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
        params = self._best(rule)[0] if size == self.study.base else self._centres.get(rule)
        return self._points(size, rule).get(params_key(params), []) if params else []

    @cached_property
    def _centres(self) -> dict[str | None, dict[str, Any] | None]:
        """Rule → what the base's runs carry under it."""
        groups = {rule: self._points(self.study.base, rule).values() for rule in self.study.rules}
        return {rule: self.study.best_params([(group[0]["params"], group) for group in own]) for rule, own in groups.items()}

    def _best(self, rule: str | None) -> tuple[dict[str, Any] | None, float]:
        """The base's point of lowest mean loss, and that loss; (None, inf) when no point completed with every seed."""
        groups = self._points(self.study.base, rule).values()
        return lowest([(group[0]["params"], group) for group in groups], len(self.study.seeds))

    # What they say

    @property
    def best(self) -> dict[str, Any]:
        """What the base carries: its point of lowest mean loss over the seeds, of which one with a failed seed is none; in
        :func:`tune` with the learning rate of the parabola through it and its neighbours.

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
        best = self._centres[self.study.rules[0]]
        if best is None:
            what = the(self.study.base) if self.study.base else f"study {self.study.name!r}"
            raise MupError(
                f"No point of {what} completed with every seed, so there is no best one.{first_failure(self.records)}"
            )
        return best

    @property
    def best_loss(self) -> float:
        """Mean loss of the best point that was trained; infinite when none completed with every seed."""
        return self._best(self.study.rules[0])[1]

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
        for group in sorted(self._points(size, rule).values(), key=lambda group: score(group, len(self.study.seeds))):
            loss, std = mean_and_std([r["loss"] for r in group if is_complete(r)])
            row = {"params": group[0]["params"], "loss": loss, "std": std}
            rows.append({**row, "failed": sum(not is_complete(r) for r in group), "seconds": seconds(group)})
        return rows

    def curve(self, name: str = "lr", rule: str | None = None) -> dict[Any, list[float | None]]:
        """The base's losses for each value of a hyperparameter, others at their best; a seed an entry, None where it failed.

        Nothing unless it has a grid of numbers of which one completed with every seed.

        Parameters
        ----------
        name : str, default "lr"
            The hyperparameter.
        rule : str, optional
            The first one by default.

        Returns
        -------
        dict
            Value → losses.

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
        for group in self._points(self.study.base, rule).values():
            if {**group[0]["params"], name: best[name]} == best:
                of_seed = {r["seed"]: r["loss"] for r in group}
                losses[group[0]["params"][name]] = [of_seed.get(seed) for seed in self.study.seeds]
        return losses

    def summary(self) -> list[dict[str, Any]]:
        """One row for each rule and size.

        Returns
        -------
        list of dict
            ``rule``, ``size``; ``best``: the base's best point, None at the target; ``at_edge``: whether one of its values
            is the first or last of its grid; ``transferred``: what the base carries; ``transferred_loss``, ``_std`` and
            ``_test``, the error on test data: of that at this size, at the base those of its best point (infinite and nan
            where no seed completed);
            ``failed`` and ``trials``: runs of it that did not complete, and all; ``seconds`` of all runs at this size.

        Examples
        --------
        >>> [(row["rule"], row["size"], row["transferred_loss"]) for row in results.summary()][-1]
        ('standard', 'target', 1.05)
        """
        return [self.row(rule, size) for rule in self.study.rules for size in self.study.sizes]

    def row(self, rule: str | None, size: str | None = None) -> dict[str, Any]:
        """The summary's row of a rule, at the last size by default.

        Parameters
        ----------
        rule : str or None
            One of the study's.
        size : str, optional
            Label of the size.

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
        carried = self.carried(size, rule)
        done = [r for r in carried if is_complete(r)]
        loss, std = mean_and_std([r["loss"] for r in done])
        tests = [r["metrics"]["test_loss"] for r in done if is_number(r["metrics"].get("test_loss"))]
        best = carried[0]["params"] if carried and size == study.base else {}
        return {
            "rule": rule,
            "size": size,
            "best": best or None,
            "at_edge": any(edge_of(value, study.space.get(name)) for name, value in best.items()),
            "transferred": self._centres.get(rule),
            "transferred_loss": loss,
            "transferred_std": std,
            "transferred_test": sum(tests) / len(tests) if tests else None,
            "failed": len(carried) - len(done),
            "trials": len(carried),
            "seconds": seconds(self.cell(size, rule)),
        }


def seconds(records: Iterable[Mapping[str, Any]]) -> float:
    """Measured seconds of these runs: of training, where the train function told it, else of the whole run."""
    return sum(r["metrics"].get("seconds") or r["seconds"] for r in records)
