"""A study defines sizes, a search space, rules and seeds. Its missing runs are a function of the records so far.

A *point* is one set of hyperparameters at one size under one rule. It has one run per seed.
"""

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from neuralop_mup.errors import MupError, error_text
from neuralop_mup.lab.files import as_folder, put
from neuralop_mup.lab.outcome import first_failure, is_complete, lowest, plain
from neuralop_mup.lab.records import Records, Run, described, params_key
from neuralop_mup.lab.statistics import find_optimum

Params = Mapping[str, Any]
#: Fields that are stored in ``study.json`` in addition to the sizes, because results need them.
_SAVED = ("name", "space", "seeds", "rules", "fixed", "interpolate", "notes", "keep_weights")
#: Maps field names in files from release 0.3 to the current names.
_RENAMED = {"between": "interpolate", "keeps": "keep_weights"}


@dataclass(frozen=True, kw_only=True)
class Study:
    """Sizes, hyperparameters, rules and seeds.

    Attributes
    ----------
    name : str
        Name that is shown in the progress bar and in reports.
    space : mapping of str to sequence
        Maps each hyperparameter to the values to try.
    seeds : tuple of int
        Seeds for every point.
    train : callable, optional
        Train function, in the form that ``Run`` of ``neuralop_mup.lab.records`` accepts. It may have a method
        ``content(config)`` that returns everything the result depends on. Default: its fingerprint and all of ``config``.
    sizes : mapping of str to dict, optional
        Maps a label to arguments of the model. The first size is the base, at which hyperparameters are tuned. The last size
        is the target, which is trained with the best hyperparameters. With ``{None: None}``, runs have no ``model``,
        ``base`` and ``rule``.
    rules : tuple of str, default (None,)
        Rules to compare on the target. Results refer to the first rule. If the target is larger than the base, all rules
        share the runs of the base, since every rule is identical to the standard parametrization there.
    fixed : mapping, optional
        Settings that are the same in every run.
    settings_by_rule : mapping of str to dict, optional
        Maps a rule to additional settings of its runs, which may contain a ``base`` that is not a size of the study.
    interpolate : bool, default False
        Whether the best learning rate may lie between grid points, at the minimum of a parabola (:func:`find_optimum`).
    notes : tuple of str, default ()
        Warnings that are also shown in the report.
    costs : mapping, optional
        Relative cost of a run at each size, which is used to estimate the remaining time.
    keep_weights : bool, default False
        Whether to keep the weights of the target under the first rule. If there is only one size, all runs keep them.

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
    settings_by_rule: Mapping[Any, Mapping[str, Any]] = field(default_factory=dict)
    interpolate: bool = False
    notes: tuple[str, ...] = ()
    keep_weights: bool = False
    costs: Mapping[Any, float] = field(default_factory=dict, compare=False)
    _made: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)  # a cache of runs

    @property
    def base(self) -> str | None:
        """The label of the first size, at which hyperparameters are tuned."""
        return next(iter(self.sizes))

    @property
    def target(self) -> str | None:
        """The label of the last size."""
        return list(self.sizes)[-1]

    # The runs of a study

    def content(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return everything that the result of a run depends on."""
        if hasattr(self.train, "content"):
            return self.train.content(config)
        return {"train": self._train_described, **config}

    @cached_property
    def _train_described(self) -> Any:
        return described(self.train)  # computed once, since the state of the function may change during the runs

    def point(self, size: str | None, rule: str | None, params: Params) -> list[Run]:
        """Return the runs of a point, one per seed. Runs of the target under the first rule may keep their weights."""
        key = (size, rule, params_key(params))
        if key not in self._made:
            sizes = {}
            if self.sizes[size] is not None:
                sizes = {"model": dict(self.sizes[size]), "base": dict(self.sizes[self.base]), "rule": rule}
            config = {**self.fixed, **sizes, **self.settings_by_rule.get(rule, {}), **params}
            keep = self.keep_weights and (size, rule) == (self.target, self.rules[0])
            labels = {"size": size, "rule": rule, "params": plain(params)}
            configs = [{**config, "seed": seed} for seed in self.seeds]
            self._made[key] = [
                Run(self.content(own), own, keep, train=self.train, **labels, seed=own["seed"]) for own in configs
            ]
        return self._made[key]

    @cached_property
    def tuning(self) -> list[list[Run]]:
        """The points of the grid at the base. They are shared by all rules if the target is a different size."""
        rules = self.rules if self.base == self.target else self.rules[:1]
        return [self.point(self.base, rule, params) for rule in rules for params in points(self.space)]

    def target_points(self, params: Params | None) -> list[list[Run]]:
        """Return the points of the target with these hyperparameters, one per rule, or no points if ``params`` is None."""
        if params is None or self.base == self.target:
            return []
        return [self.point(self.target, rule, params) for rule in self.rules]

    @property
    def example(self) -> Params:
        """The first point of the grid, which serves as a placeholder until the best point is known."""
        return {name: values[0] for name, values in self.space.items()}

    # Results and missing runs, given the records so far

    def transferred(self, records: Records) -> Params | None:
        """Return the hyperparameters for the target, or None if no point of the base completed for every seed."""
        found = [list(filter(None, map(records.get, runs))) for runs in self.tuning]
        return self.best_params(list(zip(points(self.space), found, strict=False)))

    def best_params(self, points: Sequence[tuple[Params, Sequence[Mapping[str, Any]]]]) -> Params | None:
        """Return the best of these points, given their records. If ``interpolate`` is true, refine its learning rate."""
        best, _ = lowest(points, len(self.seeds))
        if best is None or not self.interpolate:
            return best
        losses = {}
        for params, records in points:
            if {**params, "lr": best["lr"]} == best and len(records) == len(self.seeds):
                losses[params["lr"]] = [record["loss"] for record in records]
        optimum = find_optimum(losses)
        return best if optimum is None else {**best, "lr": float(f"{optimum.value:.3g}")}

    def missing_runs(self, records: Records) -> list[Run]:
        """Return the missing runs that can start now, in order: first the runs of the base, then those of the target.

        The first seed of every point comes first, so that even an interrupted study covers its grid. The other seeds of a
        point start after its first seed has completed. If a seed does not complete, no further seeds of that point start.

        Parameters
        ----------
        records : Records
            The runs in a folder.

        Returns
        -------
        list of Run
            Empty if the study is finished.

        Raises
        ------
        MupError
            If there is a target, and all points of the base are finished but none completed.

        Examples
        --------
        >>> from neuralop_mup.lab.records import Records
        >>> study = Study(name="lr", space={"lr": [0.25, 0.5]}, seeds=(0, 1))
        >>> with Records("runs").held() as records:
        ...     [run.config for run in study.missing_runs(records)]
        [{'lr': 0.25, 'seed': 0}, {'lr': 0.5, 'seed': 0}]
        """
        missing = self._startable(self.tuning, records)
        if missing or self.base == self.target:
            return missing
        params = self.transferred(records)
        if params is None:
            raise MupError(
                f"No configuration of {the(self.base)} completed for every seed, so there are no hyperparameters for the "
                f"target.{first_failure(self.rows(records))}"
            )
        return self._startable(self.target_points(params), records)

    def _startable(self, points: Iterable[list[Run]], records: Records) -> list[Run]:
        """Return the missing runs of these points. Seeds after the first one are included once the first one has ended."""
        unfinished = self._unfinished(points, records)
        started = [runs if records.get(runs[0]) is not None else runs[:1] for runs in unfinished]
        by_seed = itertools.chain(*itertools.zip_longest(*started))
        return [run for run in by_seed if run is not None and records.get(run) is None]

    def all_missing(self, records: Records) -> list[Run]:
        """Return the missing runs, including those of the target that cannot start yet."""
        points = self.tuning + self.target_points(self.transferred(records) or self.example)
        return [run for runs in self._unfinished(points, records) for run in runs if records.get(run) is None]

    def _unfinished(self, points: Iterable[list[Run]], records: Records) -> list[list[Run]]:
        """Return the points that need more runs. If a seed did not complete, no further seeds of its point are trained."""
        found = [(runs, list(map(records.get, runs))) for runs in points]
        return [runs for runs, own in found if None in own and all(map(is_complete, filter(None, own)))]

    def rows(self, records: Records) -> list[dict[str, Any]]:
        """Return a record with labels for each finished run, in the order of the points."""
        runs = itertools.chain(*self.tuning, *self.target_points(self.transferred(records)))
        return [{**run.labels, **record, "id": run.id} for run in runs if (record := records.read(run)) is not None]

    # Files

    def save(self, records: Records) -> None:
        """Write ``results.jsonl``, with one line per run, and ``study.json``, with the fields of the study.

        Parameters
        ----------
        records : Records
            The runs in a folder.

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
        fields = {name: plain(getattr(self, name)) for name in _SAVED}
        fields["sizes"] = plain(list(self.sizes.items()))
        put(records.folder, records.folder / "results.jsonl", table)
        put(records.folder, records.folder / "study.json", json.dumps(fields, indent=2) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> tuple["Study", list[dict[str, Any]]]:
        """Load the last study in a folder and its rows. Tuples in hyperparameters become lists.

        Parameters
        ----------
        folder : str or Path
            Folder of a sweep, a transfer or a call of :func:`neuralop_mup.tune`.

        Returns
        -------
        study : Study
        rows : list of dict
            One record for each finished run.

        Raises
        ------
        MupError
            If the folder contains no study, or if its files are damaged.

        Examples
        --------
        >>> import neuralop_mup as nm
        >>> how = {"folder": "runs", "n_workers": 1, "progress": False}
        >>> results = nm.sweep(lambda config: config["lr"], {"lr": [0.25, 0.5]}, **how)
        >>> study, rows = Study.load("runs")
        >>> study.space, len(rows)
        ({'lr': [0.25, 0.5]}, 2)
        """
        folder = as_folder(folder)
        try:
            saved = json.loads((folder / "study.json").read_text(encoding="utf-8"))
            table = (folder / "results.jsonl").read_text(encoding="utf-8")
            fields = {_RENAMED.get(name, name): value for name, value in saved.items()}
            fields["sizes"] = dict(fields["sizes"])
            for name in ("seeds", "rules", "notes"):
                fields[name] = tuple(fields[name])
            return cls(**fields), [json.loads(line) for line in table.splitlines()]
        except (OSError, ValueError, KeyError, TypeError) as error:
            inner = ", ".join(sorted(str(path.parent) for path in folder.glob("*/study.json"))[:8])
            raise MupError(
                f"{folder} contains no readable study ({error_text(error)}). "
                f"{f'Pass one of its folders: {inner}.' if inner else 'Run a study there first.'}"
            ) from None


def the(size: str | None) -> str:
    """Return the name of a size for use in a sentence, such as ``the target`` or ``K = 8``."""
    return f"the {size}" if size in ("proxy", "target") else str(size)


# Search spaces


def log2_grid(low: float, high: float) -> list[float]:
    """Return a grid from ``low`` to ``high``, both included, in which each value is twice the previous one.

    Parameters
    ----------
    low, high : float
        Ends of the grid. ``high`` must be ``low`` times a power of two.

    Returns
    -------
    list of float
        ``[low, 2 * low, 4 * low, ..., high]``.

    Raises
    ------
    MupError
        If an end is not positive and finite, or if ``high`` is not ``low`` times a power of two.

    Examples
    --------
    >>> import neuralop_mup as nm
    >>> nm.log2_grid(2**-3, 2)
    [0.125, 0.25, 0.5, 1.0, 2.0]
    """
    doublings = math.log2(high / low) if 0 < low <= high < math.inf else math.nan
    if not math.isclose(doublings, np.rint(doublings), abs_tol=1e-6):
        raise MupError(
            f"log2_grid({low!r}, {high!r}) is not a valid grid. Both ends must be positive and finite, and the upper end "
            "must be the lower end times a power of two, as in log2_grid(2**-12, 2**-5)."
        )
    n = round(doublings)
    return [float(low * 2**i) for i in range(n)] + [float(high)]


def is_number(value: Any) -> bool:
    """Return whether ``value`` is a plain number and not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def edge_of(value: Any, grid: Any) -> str | None:
    """Return "lowest" or "highest" if ``value`` is the first or last of a grid of at least two numbers, else None."""
    if grid is None or len(grid) < 2 or not all(map(is_number, grid)):
        return None
    return "lowest" if value == min(grid) else "highest" if value == max(grid) else None


def points(space: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return every point of a grid. The values of the last key vary fastest."""
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]


def checked_fields(
    space: Mapping[str, Any], fixed: Mapping[str, Any] | None, seeds: Iterable[int], reserved: Sequence[str]
) -> dict[str, Any]:
    """Validate fields of a study and return them by name, with grids as lists of plain values and seeds as a tuple.

    Parameters
    ----------
    space : mapping of str to sequence
        Maps each hyperparameter to the values to try.
    fixed : mapping, optional
        Config entries that are the same in every run.
    seeds : iterable of int
        Seeds for every point.
    reserved : sequence of str
        Config keys that the study itself sets.

    Raises
    ------
    MupError
        If the space is empty, if a key is reserved or occurs twice, or if the values or the seeds are invalid.
    """
    fixed = dict(fixed or {})
    if not isinstance(space, Mapping) or not space:
        values = list(space) if isinstance(space, (list, tuple)) else [0.01, 0.02, 0.04]
        raise MupError(
            f"space={space!r} must be a dict that maps each hyperparameter to the values to try, such as {{'lr': {values}}}."
        )
    for key in [*space, *fixed]:
        if not isinstance(key, str) or key in reserved or (key in space and key in fixed):
            raise MupError(
                f"The key {key!r} cannot be used. Keys must be strings, must not occur in both space and fixed, and must "
                f"differ from {', '.join(reserved)}, which the study sets itself."
            )
    listed = tuple(seeds) if isinstance(seeds, Iterable) else ()
    if not listed or not all(isinstance(s, Integral) for s in listed) or len(set(listed)) != len(listed):
        raise MupError(f"seeds={seeds!r} must be a sequence of distinct integers, such as seeds=(0, 1, 2).")
    space = {key: _grid(key, values) for key, values in space.items()}
    return {"space": space, "fixed": fixed, "seeds": tuple(map(int, listed))}  # JSON does not support NumPy integers


def _grid(key: str, values: Any) -> list[Any]:
    """Return the values of one hyperparameter as a list. Raise MupError if they are invalid."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise MupError(f"space[{key!r}]={values!r} must be a sequence of values. To try one value, use {key}=[{values!r}].")
    values = [v.item() if hasattr(v, "item") and getattr(v, "ndim", 0) == 0 else v for v in values]
    try:
        json.dumps(values, allow_nan=False)
    except (TypeError, ValueError):
        raise MupError(
            f"space[{key!r}]={values!r} cannot be stored as JSON. Use finite numbers, strings, booleans, None, or lists of "
            "these, and let the train function look up other objects by name."
        ) from None
    # Treat 1 and 1.0 as duplicates, since they look the same in a table.
    distinct = {value if isinstance(value, (int, float)) else params_key({key: value}) for value in values}
    if not values or len(distinct) < len(values):
        raise MupError(f"space[{key!r}]={values!r} must contain at least one value and no duplicates.")
    return values
