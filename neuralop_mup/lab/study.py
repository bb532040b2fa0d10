"""What a study is: sizes, hyperparameters, rules and seeds, and from records the runs that it still wants. Nothing runs
here.

A *point* is one set of hyperparameters at one size under one rule, trained with every seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from neuralop_mup.core.rules import RULE_VERSION
from neuralop_mup.errors import MupError
from neuralop_mup.lab.outcome import first_failure, is_complete, lowest, plain
from neuralop_mup.lab.records import Records, Run, described
from neuralop_mup.lab.space import edge_of, is_distribution, is_number, params_key, points
from neuralop_mup.lab.statistics import find_optimum
from neuralop_mup.lab.with_optuna import Search

__all__ = ["Point", "Study", "the"]

Params = Mapping[str, Any]
_PAIRS = ("sizes", "base_rules", "under", "at")  # mappings whose keys JSON would turn into text


@dataclass(frozen=True)
class Point:
    """One set of hyperparameters at one size under one rule.

    Attributes
    ----------
    size, rule : str or None
        Label of the size, and the rule under which it is trained; None where the study has none.
    params : dict
        The hyperparameters.
    keep : bool, default False
        Whether the weights of its runs are wanted.

    Examples
    --------
    >>> from neuralop_mup.lab import Point
    >>> Point("target", "operator-norm", {"lr": 1}).key == Point("target", "operator-norm", {"lr": 1.0}).key
    True
    """

    size: str | None
    rule: str | None
    params: dict[str, Any]
    keep: bool = False

    @cached_property
    def key(self) -> tuple:
        """Equal for equal points."""
        return self.size, self.rule, params_key(self.params)


@dataclass(frozen=True, kw_only=True)
class Study:
    """Sizes, hyperparameters, rules and seeds.

    Attributes
    ----------
    name : str
        What it is called in progress, reports and storages.
    sizes : mapping of str to dict, optional
        Label → arguments of the model: the base, where hyperparameters are tuned, and the target, to which the best are
        carried. ``{None: None}``: the model is no business of the study, and its runs get no ``model``, ``base`` and
        ``rule``.
    rules : tuple of str, default (None,)
        Rules that are compared at the target; the first one is what the study is about.
    searched : tuple of str, default ()
        Those of them under which the space is walked at the target, too, to see what carrying over missed.
    base_rules : mapping of str to str, optional
        Rule → the rule under which the base is trained for it; itself where it is not among them. At the base every
        rule is the standard parametrization bit for bit, so that one set of runs may serve them all.
    space : mapping of str to sequence or Optuna distribution
        What is tuned.
    seeds : tuple of int
        With each of them every point is trained.
    n_trials : int, optional
        Points of a search, where the space has a distribution.
    fixed : mapping, optional
        Settings that every run has.
    under : mapping of str to dict, optional
        Rule → settings that its runs have besides.
    at : mapping of str to dict, optional
        Label of a size → settings that its runs have besides.
    between : bool, default False
        Whether the best learning rate is taken between grid points, where a parabola has one (:func:`find_optimum`).
    extends : mapping of str to int, optional
        Hyperparameter → by how many values its grid may grow at the base, one at a time, while the best one lies at an
        edge.
    notes : tuple of str, default ()
        What a reader must know besides.
    about : str, default ""
        What it measures, in a phrase.
    keeps : bool, default False
        Whether the carried runs of the target under the first rule keep their weights.
    content : callable, optional
        A run's configuration → everything that its result depends on.
    search : Search, optional
        What proposes points, where the space has a distribution.

    Examples
    --------
    >>> from neuralop_mup.lab import Study
    >>> study = Study(name="lr", space={"lr": [0.25, 0.5]}, seeds=(0, 1), fixed={"epochs": 5})
    >>> study.config(study.tuning()[0], seed=1)
    {'epochs': 5, 'lr': 0.25, 'seed': 1}
    >>> study.planned().total()
    4
    """

    name: str
    space: Mapping[str, Any]
    seeds: tuple[int, ...]
    sizes: Mapping[str | None, Any] = field(default_factory=lambda: {None: None})
    rules: tuple[str | None, ...] = (None,)
    searched: tuple[str | None, ...] = ()
    base_rules: Mapping[Any, Any] = field(default_factory=dict)
    n_trials: int | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    under: Mapping[Any, Mapping[str, Any]] = field(default_factory=dict)
    at: Mapping[Any, Mapping[str, Any]] = field(default_factory=dict)
    between: bool = False
    extends: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    about: str = ""
    keeps: bool = False
    content: Callable[[dict[str, Any]], Mapping[str, Any]] = field(default_factory=lambda: dict, compare=False)
    search: Search | None = field(default=None, compare=False)
    _runs: dict[tuple, list[Run]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def base(self) -> str | None:
        """Label of the size at which hyperparameters are tuned."""
        return next(iter(self.sizes))

    @property
    def target(self) -> str | None:
        """Label of the last size."""
        return list(self.sizes)[-1]

    # What is asked

    def trained_as(self, size: str | None, rule: str | None) -> str | None:
        """The rule under which a size is trained for ``rule``."""
        return self.base_rules.get(rule, rule) if size == self.base else rule

    def point(self, size: str | None, rule: str | None, params: Params, keep: bool = False) -> Point:
        """The point that answers for these hyperparameters at a size under a rule."""
        return Point(size, self.trained_as(size, rule), dict(params), keep)

    def config(self, point: Point, seed: int) -> dict[str, Any]:
        """What ``train`` is given."""
        model = {}
        if self.sizes[point.size] is not None:
            model = {"model": dict(self.sizes[point.size]), "base": dict(self.sizes[self.base]), "rule": point.rule}
        own = {**self.under.get(point.rule, {}), **self.at.get(point.size, {})}
        return {**self.fixed, **own, **model, **point.params, "seed": seed}

    def runs(self, point: Point) -> list[Run]:
        """A run for each seed."""
        key = (*point.key, point.keep)
        if key not in self._runs:
            labels = {"size": point.size, "rule": point.rule, "params": plain(point.params)}
            configs = {seed: self.config(point, seed) for seed in self.seeds}
            self._runs[key] = [Run(self.content(c), c, point.keep, **labels, seed=seed) for seed, c in configs.items()]
        return self._runs[key]

    def tuning(self, records: Records | None = None) -> list[Point]:
        """The points on which everything else depends: the base's grid, or what was proposed so far."""
        if self.n_trials is not None:
            asked = [] if records is None else records.proposals(self.definition)
            return _unique(self.point(self.base, self.rules[0], params) for params in asked)
        return self._grid

    @cached_property
    def _grid(self) -> list[Point]:
        return _unique(self.point(self.base, rule, p) for rule in self.rules for p in points(self.space))

    def rest(self, centres: Mapping[Any, Params]) -> list[Point]:
        """What is trained once the base's best points are known: those at the target, and where it is searched all."""
        if len(self.sizes) < 2:
            return []
        keep = {self.rules[0]} if self.keeps else set()
        carried = [self.point(self.target, rule, centres[rule], rule in keep) for rule in self.rules]
        return _unique([*carried, *(self.point(self.target, r, p) for r in self.searched for p in points(self.space))])

    def planned(self) -> Counter:
        """Size → number of runs of the whole study, with any point in the place of the best."""
        tuning = self.n_trials or len(self.tuning())
        return Counter({self.base: tuning * len(self.seeds)}) + Counter(
            point.size for point in self.rest(dict.fromkeys(self.rules, self.example)) for _ in self.seeds
        )

    def as_given(self, params: Params) -> Params:
        """The point of the grid that JSON shows so: it turns tuples into lists."""
        grid = [] if self.n_trials is not None else points(self.space)
        return next((p for p in grid if params_key(p) == params_key(params)), params)

    @property
    def example(self) -> Params:
        """Any point, in the place of one that is not known yet: as many runs, at the same cost."""
        return {k: getattr(v, "low", None) if is_distribution(v) else v[0] for k, v in self.space.items()}

    # What records say

    def ends(self, point: Point, records: Records) -> list[dict[str, Any]] | None:
        """The records of a point that is done: every seed ended, or one did not complete; None for one that is not."""
        found = [record for run in self.runs(point) if (record := records.get(run)) is not None]
        return found if len(found) == len(self.seeds) or not all(map(is_complete, found)) else None

    def best(self, wanted: Iterable[Point], records: Records) -> Params | None:
        """The point of lowest mean loss among those that completed with every seed."""
        return lowest(((point.params, self.ends(point, records) or []) for point in wanted), len(self.seeds))[0]

    def centres(self, records: Records) -> dict[Any, Params | None]:
        """Rule → what is carried from the base under it; None where no point completed with every seed."""
        tuning = self.tuning(records)
        own = {rule: [p for p in tuning if p.rule == self.trained_as(self.base, rule)] for rule in self.rules}
        return {
            rule: self.carried((point.params, self.ends(point, records) or []) for point in wanted)
            for rule, wanted in own.items()
        }

    def carried(self, found: Iterable[tuple[Params, Sequence[Mapping[str, Any]]]]) -> Params | None:
        """What is carried from points and their records: the best of them, with ``between`` at its learning rate's
        optimum.
        """
        found = list(found)
        best, _ = lowest(found, len(self.seeds))
        if best is None or not self.between:
            return best
        beside = {p["lr"]: ends for p, ends in found if params_key({**p, "lr": 0}) == params_key({**best, "lr": 0})}
        optimum = find_optimum({lr: [r["loss"] if is_complete(r) else None for r in ends] for lr, ends in beside.items()})
        return {**best, "lr": float(f"{optimum.value:.3g}")} if optimum and optimum.value else best

    def extended(self, records: Records) -> Study:
        """The study with as many values beyond the edges of its grid as the base's best points have asked for so far."""
        for name, more in self.extends.items():
            if more < 1 or any(self.ends(point, records) is None for point in self.tuning()):
                continue
            values = sorted(self.space[name])
            edge = edge_of((self.best(self.tuning(), records) or {}).get(name), values)
            if edge is not None:
                new = values[0] ** 2 / values[1] if edge == "lowest" else values[-1] ** 2 / values[-2]
                space = {**self.space, name: sorted([*values, float(f"{new:.12g}")])}
                return replace(self, space=space, extends={**self.extends, name: more - 1}).extended(records)
        return self

    def wanted(self, records: Records) -> list[Run]:
        """The runs that may start now and are not done, in the order in which they should: first the base, then the rest.

        Seed by seed, so that a study that is stopped early has covered its grid once. A point's first seed must complete
        before another starts; a point whose seed did not complete stops.

        Parameters
        ----------
        records : Records
            The runs that a folder holds.

        Returns
        -------
        list of Run
            None of them once all is done.

        Raises
        ------
        MupError
            If the base is done, nothing of it completed, and a target waits for it.

        Examples
        --------
        >>> from neuralop_mup.lab.records import Records
        >>> study = Study(name="lr", space={"lr": [0.25, 0.5]}, seeds=(0, 1))
        >>> with Records("runs").held() as records:
        ...     [run.config for run in study.wanted(records)]
        [{'lr': 0.25, 'seed': 0}, {'lr': 0.5, 'seed': 0}]
        """
        study = self.extended(records)
        tuning = study.tuning(records)
        open_ones = study._open(tuning, records)
        if open_ones:
            return open_ones
        if study.n_trials is not None and len(records.proposals(study.definition)) < study.n_trials:
            return []
        centres = study.centres(records)
        if None not in centres.values():
            return study._open(study.rest(centres), records)
        if len(study.sizes) > 1:
            ends = [end for point in tuning for end in study.ends(point, records) or ()]
            raise MupError(
                f"No point of {the(study.base)} completed with every seed, so nothing can be carried over."
                f"{first_failure(ends)}"
            )
        return []

    def _open(self, wanted: Iterable[Point], records: Records) -> list[Run]:
        left = []
        for point in wanted:
            if self.ends(point, records) is None:
                runs = self.runs(point)
                left.append(runs if records.get(runs[0]) is not None else runs[:1])
        return [runs[i] for i in range(len(self.seeds)) for runs in left if i < len(runs) and records.get(runs[i]) is None]

    def propose(self, records: Records) -> bool:
        """Have one more point proposed, where points are and not all were; whether there is one."""
        asked = records.proposals(self.definition) if self.search is not None else []
        if self.search is None or len(asked) >= self.n_trials:
            return False
        ends = [self.ends(self.point(self.base, self.rules[0], params), records) for params in asked]
        records.propose(self.definition, [*asked, self.search.next(asked, ends)])
        return True

    def points(self, records: Records, guess: bool = False) -> list[Point]:
        """The points that are asked for so far, in their order; ``guess``: with any in the place of the best one."""
        centres = self.centres(records)
        centres = {rule: self.example if guess and best is None else best for rule, best in centres.items()}
        return [*self.tuning(records), *([] if None in centres.values() else self.rest(centres))]

    def left(self, records: Records) -> Counter:
        """Size → number of runs that are not done, as far as can be told."""
        study = self.extended(records)
        wanted = [point for point in study.points(records, guess=True) if study.ends(point, records) is None]
        left = Counter(p.size for p in wanted for run in study.runs(p) if records.get(run) is None)
        if self.n_trials is not None:
            left[self.base] += len(self.seeds) * (self.n_trials - len(records.proposals(self.definition)))
        return left

    def rows(self, records: Records) -> list[dict[str, Any]]:
        """A record for each run of the study that ended, with what the study calls it; points in their order."""
        study = self.extended(records)
        order = {cell: i for i, cell in enumerate((s, r) for s in self.sizes for r in self.rules)}
        wanted = sorted(study.points(records), key=lambda p: (order.get((p.size, p.rule), 0), _order(p.params)))
        runs = [run for point in wanted for run in study.runs(point)]
        return [{**run.labels, **record} for run in runs if (record := records.read(run)) is not None]

    # What is written down

    @cached_property
    def definition(self) -> dict[str, Any]:
        """What makes two searches the same: all but how many points they may try, and what is made of the best."""
        at_base = {"name": None, "n_trials": None, "searched": None, "keeps": None, "rules": self.rules[:1]}
        return {**self.settings, **at_base, "content": self.at_base}

    @property
    def at_base(self) -> Mapping[str, Any]:
        """What the runs of the base have in common, whatever values are tried."""
        return self.content(self.config(self.point(self.base, self.rules[0], {}), 0))

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that was asked, as JSON."""
        asked = {
            name: plain(getattr(self, name))
            for name in ("name", "seeds", "rules", "searched", "between", "n_trials", "about")
        }
        asked |= {name: [[k, plain(v)] for k, v in getattr(self, name).items()] for name in _PAIRS}
        asked |= {"fixed": plain(dict(self.fixed)), "space": {k: described(v) for k, v in self.space.items()}}
        return {**asked, "notes": plain(self.notes), "rule_version": RULE_VERSION}

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Study:
        """The study that these settings describe."""
        pairs = {name: dict(settings[name]) for name in _PAIRS}
        tuples = {name: tuple(settings[name]) for name in ("seeds", "rules", "searched", "notes")}
        as_they_are = {name: settings[name] for name in ("name", "between", "n_trials", "about", "fixed")}
        return cls(**pairs, **tuples, **as_they_are, space={k: _read(v) for k, v in settings["space"].items()})


def _read(values: Any) -> Any:
    if not isinstance(values, str):
        return values
    from optuna.distributions import json_to_distribution

    return json_to_distribution(values)


def _unique(wanted: Iterable[Point]) -> list[Point]:
    found: dict[tuple, Point] = {}
    for point in wanted:
        found.setdefault(point.key, point)
    return list(found.values())


def _order(params: Params) -> tuple:
    """Sorts points: numbers by size, anything else by its text."""
    return tuple((k, (0, v, "") if is_number(v) else (1, 0, params_key({"": v}))) for k, v in sorted(params.items()))


def the(size: str | None) -> str:
    """A size in a sentence: ``the target``, but ``K = 8``."""
    return f"the {size}" if size in ("proxy", "target") else str(size)
