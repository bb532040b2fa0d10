"""A study: sizes, search space, rules and seeds, and the runs that are missing, given the records so far.

A *point* is one set of hyperparameters at one size under one rule, with one run per seed.
"""

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from neuralop_mup.errors import MupError
from neuralop_mup.lab.files import put
from neuralop_mup.lab.outcome import first_failure, is_complete, lowest, plain
from neuralop_mup.lab.records import Records, Run, described, params_key
from neuralop_mup.lab.statistics import find_optimum

Params = Mapping[str, Any]
#: Fields in ``study.json``, beside the sizes: those that results need.
_KEPT = ("name", "space", "seeds", "rules", "fixed", "between", "notes", "keeps")


@dataclass(frozen=True, kw_only=True)
class Study:
    """Sizes, hyperparameters, rules and seeds.

    Attributes
    ----------
    name : str
        Its name in progress and reports.
    space : mapping of str to sequence
        Hyperparameter → values to try.
    seeds : tuple of int
        Every point is trained with each of them.
    train : callable, optional
        The train function, as in ``Run`` of ``neuralop_mup.lab.records``. It may have ``content(config)``, which returns
        everything that the result depends on. Default: its fingerprint and all of ``config``.
    sizes : mapping of str to dict, optional
        Label → arguments of the model: the base, where hyperparameters are tuned, and the target, which is trained with the
        best of them. With ``{None: None}``, runs have no ``model``, ``base`` and ``rule``.
    rules : tuple of str, default (None,)
        Rules to compare at the target; the study is about the first one. At the base of a larger size every rule is the
        standard parametrization bit for bit, so all rules share one set of runs.
    fixed : mapping, optional
        Settings of every run.
    under : mapping of str to dict, optional
        Rule → additional settings of its runs.
    at : mapping of str to dict, optional
        Label of a size → additional settings of its runs, such as a ``base`` that is not a size of the study.
    between : bool, default False
        Whether the best learning rate may lie between grid points, at the minimum of a parabola (:func:`find_optimum`).
    notes : tuple of str, default ()
        Sentences for the reader of the report.
    keeps : bool, default False
        Whether the runs of the target under the first rule keep their weights; with one size, all runs.
    costs : mapping, optional
        Relative cost of a run of each size, to estimate the time left.

    Examples
    --------
    >>> from neuralop_mup.lab import Study
    >>> study = Study(name="lr", space={"lr": [0.25, 0.5]}, seeds=(0, 1), fixed={"epochs": 5})
    >>> [run.config for run in study.tuning[0]]
    [{'epochs': 5, 'lr': 0.25, 'seed': 0}, {'epochs': 5, 'lr': 0.25, 'seed': 1}]
    """

    name: str
    space: Mapping[str, Any]
    seeds: tuple[int, ...]
    train: Callable[..., Any] | None = field(default=None, compare=False)
    sizes: Mapping[str | None, Any] = field(default_factory=lambda: {None: None})
    rules: tuple[str | None, ...] = (None,)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    under: Mapping[Any, Mapping[str, Any]] = field(default_factory=dict)
    at: Mapping[Any, Mapping[str, Any]] = field(default_factory=dict)
    between: bool = False
    notes: tuple[str, ...] = ()
    keeps: bool = False
    costs: Mapping[Any, float] = field(default_factory=dict, compare=False)
    _made: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)  # runs, each once

    @property
    def base(self) -> str | None:
        """The label of the size at which hyperparameters are tuned."""
        return next(iter(self.sizes))

    @property
    def target(self) -> str | None:
        """The label of the last size."""
        return list(self.sizes)[-1]

    # The runs of a study

    def trained_as(self, size: str | None, rule: str | None) -> str | None:
        """Return the rule under which a size is trained for ``rule``."""
        return self.rules[0] if size == self.base != self.target else rule

    def content(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return everything that the result of a run depends on."""
        if hasattr(self.train, "content"):
            return self.train.content(config)
        if "train" not in self._made:  # once: what it holds may change while runs are trained
            self._made["train"] = described(self.train)
        return {"train": self._made["train"], **config}

    def point(self, size: str | None, rule: str | None, params: Params, keep: bool = False) -> list[Run]:
        """Return the runs of these hyperparameters at a size under a rule; ``keep``: whether to keep their weights."""
        rule = self.trained_as(size, rule)
        key = (size, rule, params_key(params), keep)
        if key not in self._made:
            model = {}
            if self.sizes[size] is not None:
                model = {"model": dict(self.sizes[size]), "base": dict(self.sizes[self.base]), "rule": rule}
            given = {**self.fixed, **model, **self.under.get(rule, {}), **self.at.get(size, {}), **params}
            labels = {"size": size, "rule": rule, "params": plain(params)}
            self._made[key] = [
                Run(self.content(config), config, keep, train=self.train, **labels, seed=config["seed"])
                for config in ({**given, "seed": seed} for seed in self.seeds)
            ]
        return self._made[key]

    @cached_property
    def tuning(self) -> list[list[Run]]:
        """The points of the base's grid."""
        keep = self.keeps and self.base == self.target
        found = [self.point(self.base, rule, params, keep) for rule in self.rules for params in points(self.space)]
        return list({id(runs): runs for runs in found}.values())

    def rest(self, centre: Params) -> list[list[Run]]:
        """Return the points of the target: the base's best hyperparameters, under each rule."""
        if self.base == self.target:
            return []
        return [self.point(self.target, rule, centre, self.keeps and rule == self.rules[0]) for rule in self.rules]

    @property
    def example(self) -> Params:
        """A point that stands for the best one until it is known: it has as many runs, at the same cost."""
        return {name: values[0] for name, values in self.space.items()}

    # Given the records so far

    def ends(self, runs: Sequence[Run], records: Records) -> list[dict[str, Any]] | None:
        """Return the records of a finished point (every seed ended, or one did not complete), or None."""
        known, key = getattr(records, "ended", {}), (runs[0].keep, *[run.id for run in runs])
        if key not in known:
            found = [record for run in runs if (record := records.get(run)) is not None]
            if len(found) < len(runs) and all(map(is_complete, found)):
                return None
            known[key] = found
        return known[key]

    def _found(self, records: Records) -> list[tuple[Params, list[dict[str, Any]]]]:
        """Return the finished points of the base, and their records."""
        ends = [(runs[0].config, self.ends(runs, records)) for runs in self.tuning]
        return [({name: config[name] for name in self.space}, own) for config, own in ends if own is not None]

    def centre(self, records: Records) -> Params | None:
        """Return the hyperparameters for the target; None if no point of the base completed with every seed."""
        return self.carried(self._found(records))

    def carried(self, found: Sequence[tuple[Params, Sequence[Mapping[str, Any]]]]) -> Params | None:
        """Return the best point, given points and their records; with ``between``, at the optimum of its learning rate."""
        best, _ = lowest(found, len(self.seeds))
        if best is None or not self.between:
            return best
        beside = {p["lr"]: ends for p, ends in found if {**p, "lr": 0} == {**best, "lr": 0}}
        optimum = find_optimum({lr: [r["loss"] for r in ends] for lr, ends in beside.items()})
        return {**best, "lr": float(f"{optimum.value:.3g}")} if optimum and optimum.value else best

    def wanted(self, records: Records) -> list[Run]:
        """Return the missing runs that may start now, in the order in which they should: first the base, then the target.

        The first seed of every point comes first, so that a study that is stopped early has covered its grid once. A point's
        first seed must complete before its other seeds start. A point stops if one of its seeds does not complete.

        Parameters
        ----------
        records : Records
            The runs that a folder holds.

        Returns
        -------
        list of Run
            Empty once the study is finished.

        Raises
        ------
        MupError
            If the base is finished, no point of it completed, and there is a target.

        Examples
        --------
        >>> from neuralop_mup.lab.records import Records
        >>> study = Study(name="lr", space={"lr": [0.25, 0.5]}, seeds=(0, 1))
        >>> with Records("runs").held() as records:
        ...     [run.config for run in study.wanted(records)]
        [{'lr': 0.25, 'seed': 0}, {'lr': 0.5, 'seed': 0}]
        """
        open_ones = self._open(self.tuning, records)
        if open_ones or self.base == self.target:
            return open_ones
        centre = self.centre(records)
        if centre is None:
            failures = first_failure([end for _, ends in self._found(records) for end in ends])
            raise MupError(
                f"No point of {the(self.base)} completed with every seed, so the target has no hyperparameters.{failures}"
            )
        return self._open(self.rest(centre), records)

    def _open(self, wanted: Iterable[list[Run]], records: Records) -> list[Run]:
        """Return the runs of these points that may start: all seeds of a point once the first one completed."""
        left = [runs for runs in wanted if self.ends(runs, records) is None]
        begun = [runs if records.get(runs[0]) is not None else runs[:1] for runs in left]
        return [
            run for seed in itertools.zip_longest(*begun) for run in seed if run is not None and records.get(run) is None
        ]

    def points(self, records: Records, guess: bool = False) -> list[list[Run]]:
        """Return the points so far, in their order; ``guess``: with an example if the best point is not known yet."""
        centre = self.centre(records) or (self.example if guess else None)
        return [*self.tuning, *([] if centre is None else self.rest(centre))]

    def left(self, records: Records) -> Counter:
        """Return size → number of missing runs, as far as it is known."""
        wanted = [runs for runs in self.points(records, guess=True) if self.ends(runs, records) is None]
        return Counter(run.labels["size"] for runs in wanted for run in runs if records.get(run) is None)

    def rows(self, records: Records) -> list[dict[str, Any]]:
        """Return a record for each run that ended, with its labels; points in their order."""
        runs = itertools.chain.from_iterable(self.points(records))
        return [{**run.labels, **record, "id": run.id} for run in runs if (record := records.read(run)) is not None]

    # Files

    def save(self, records: Records) -> None:
        """Write ``results.jsonl``, one line per run, and ``study.json``, the fields of the study.

        Parameters
        ----------
        records : Records
            The runs that a folder holds.

        Raises
        ------
        MupError
            If the folder cannot be written.

        Examples
        --------
        >>> from neuralop_mup.lab.records import Records
        >>> study = Study(name="lr", space={"lr": [0.25, 0.5]}, seeds=(0, 1))
        >>> with Records("runs").held() as records:
        ...     study.save(records)
        """
        table = "".join(json.dumps(row, allow_nan=False) + "\n" for row in self.rows(records))
        asked = {name: plain(getattr(self, name)) for name in _KEPT}
        asked |= {"sizes": [[size, plain(arguments)] for size, arguments in self.sizes.items()]}
        put(records.folder, records.folder / "results.jsonl", table)
        put(records.folder, records.folder / "study.json", json.dumps(asked, indent=2) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> tuple["Study", list[dict[str, Any]]]:
        """Load the last study of a folder, and its rows; tuples in params become lists.

        Parameters
        ----------
        folder : str or Path
            The folder of a sweep, a transfer or :func:`neuralop_mup.tune`.

        Returns
        -------
        study : Study
        rows : list of dict
            A record for each run that ended.

        Raises
        ------
        MupError
            If the folder contains no study, or its files are damaged.

        Examples
        --------
        >>> import neuralop_mup as nm
        >>> how = {"folder": "runs", "n_workers": 1, "progress": False}
        >>> results = nm.sweep(lambda config: config["lr"], {"lr": [0.25, 0.5]}, **how)
        >>> study, rows = Study.load("runs")
        >>> study.space, len(rows)
        ({'lr': [0.25, 0.5]}, 2)
        """
        try:
            asked = json.loads((Path(folder) / "study.json").read_text(encoding="utf-8"))
            rows = [json.loads(line) for line in (Path(folder) / "results.jsonl").read_text(encoding="utf-8").splitlines()]
            tuples = {name: tuple(asked[name]) for name in ("seeds", "rules", "notes")}
            return cls(**{**asked, **tuples, "sizes": dict(asked["sizes"])}), rows
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise MupError(f"{folder} contains no study ({type(error).__name__}: {error}). Run one there first.") from None


def the(size: str | None) -> str:
    """Return a size as it stands in a sentence: ``the target``, but ``K = 8``."""
    return f"the {size}" if size in ("proxy", "target") else str(size)


# Search spaces


def log2_grid(low: float, high: float) -> list[float]:
    """Grid of factor 2 from ``low`` to ``high``, both ends included.

    Parameters
    ----------
    low, high : float
        Ends of the grid; ``high`` is ``low`` times a power of two.

    Returns
    -------
    list of float
        ``[low, 2 * low, 4 * low, ..., high]``.

    Raises
    ------
    MupError
        If an end is not positive and finite, if ``high < low``, or if no whole number of doublings joins them.

    Examples
    --------
    >>> import neuralop_mup as nm
    >>> nm.log2_grid(2**-3, 2)
    [0.125, 0.25, 0.5, 1.0, 2.0]
    """
    doublings = math.log2(high / low) if 0 < low <= high < math.inf else math.nan
    if not math.isclose(doublings, np.rint(doublings), abs_tol=1e-6):
        raise MupError(
            f"log2_grid({low!r}, {high!r}): the upper end must be the lower one times a power of two, and both positive and "
            "finite, such as 2**-12 and 2**-5."
        )
    n = round(doublings)
    return [float(low * 2**i) for i in range(n)] + [float(high)]


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def edge_of(value: Any, grid: Any) -> str | None:
    """ "lowest" or "highest" if a number is the first or last of a grid of at least two numbers, else None."""
    if not isinstance(grid, (list, tuple)) or len(grid) < 2 or not all(map(is_number, grid)):
        return None
    return "lowest" if value == min(grid) else "highest" if value == max(grid) else None


def points(space: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every point of a grid, the last key moving fastest."""
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]


def checked(
    space: Mapping[str, Any], fixed: Mapping[str, Any] | None, seeds: Iterable[int], reserved: Sequence[str]
) -> dict[str, Any]:
    """What every study is asked, by the names of its fields: grids as lists of plain values, seeds as a tuple.

    Parameters
    ----------
    space : mapping of str to sequence
        What to tune.
    fixed : mapping, optional
        Config entries that are the same in every trial.
    seeds : iterable of int
    reserved : sequence of str
        Config keys that are set by the sweep itself.

    Raises
    ------
    MupError
        For an empty space, a key that is reserved or stands in both, values or seeds that cannot be tried.
    """
    fixed = dict(fixed or {})
    if not isinstance(space, Mapping) or not space:
        values = list(space) if isinstance(space, (list, tuple)) else [0.01, 0.02, 0.04]
        raise MupError(f"The space is {space!r}; give a dict of hyperparameters and the values to try: {{'lr': {values}}}.")
    for key in [*space, *fixed]:
        if not isinstance(key, str):
            raise MupError(f"The space has the key {key!r}; keys must be strings, such as 'lr'.")
        if key in reserved or (key in space and key in fixed):
            raise MupError(
                f"{key!r} may be only in space or only in fixed, and {', '.join(reserved)} in neither: the sweep sets them."
            )
    listed = tuple(seeds) if isinstance(seeds, Iterable) else ()
    if not listed or not all(isinstance(s, Integral) for s in listed) or len(set(listed)) != len(listed):
        raise MupError(f"seeds={seeds!r} must be a sequence of distinct integers, such as seeds=(0, 1, 2).")
    space = {key: _grid(key, values) for key, values in space.items()}
    # NumPy's integers cannot be written down.
    return {"space": space, "fixed": fixed, "seeds": tuple(map(int, listed))}


def _grid(key: str, values: Any) -> list[Any]:
    """The values of one hyperparameter as a list; MupError where they cannot be tried."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise MupError(
            f"The space gives {key!r} as {values!r}, which is no sequence of values; write {key}=[{values!r}] to try one "
            "value, or move it to fixed."
        )
    values = [v.item() if hasattr(v, "item") and getattr(v, "ndim", 0) == 0 else v for v in values]
    for value in values:
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise MupError(
                f"The space gives {key!r} the value {value!r}, which cannot be written down: use finite numbers, strings, "
                "booleans, None, or lists of them, and let the train function look objects up."
            ) from None
    # Tables show 1 and 1.0 as one value.
    distinct = {value if isinstance(value, (int, float)) else params_key({key: value}) for value in values}
    if not values or len(distinct) < len(values):
        raise MupError(f"The space gives {key!r} the values {values!r}; list at least one, and none of them twice.")
    return values
