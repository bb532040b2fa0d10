"""What a study is: sizes, hyperparameters, rules and seeds, and the points that follow from them. Nothing runs here.

``sweep``, ``transfer`` and the paper's experiments are three such descriptions. A *cell* is one size under one rule; a
*point* is one set of hyperparameters in a cell, trained with every seed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from neuralop_mup.core.rules import FORMER_RULES, RULE_VERSION
from neuralop_mup.errors import MupError
from neuralop_mup.tuning.space import edge_of, is_distribution, is_search, params_key, points

__all__ = ["Point", "Study", "describe", "differences", "the"]

Params = Mapping[str, Any]
Centres = Mapping[Any, Params]  # rule → the best point at the base under it


@dataclass(frozen=True)
class Point:
    """One set of hyperparameters at one size under one rule."""

    size: str | None
    rule: str | None
    params: dict[str, Any]

    @property
    def cell(self) -> tuple[str | None, str | None]:
        """Size and rule."""
        return self.size, self.rule

    @property
    def key(self) -> tuple:
        """Equal for equal points."""
        return self.size, self.rule, params_key(self.params)


@dataclass(frozen=True, kw_only=True)
class Study:
    """Sizes, hyperparameters, rules and seeds.

    Attributes
    ----------
    name : str
        Names the study in its folder and its storage.
    sizes : mapping of str to dict
        Label → arguments of the model; the first is the base, where hyperparameters are tuned. ``{None: None}``: the model
        is no business of the study, and its runs get no ``model``, ``base`` and ``rule``.
    rules : tuple of str
        Rules that are compared beyond the base.
    searched : tuple of str
        Those of them under which the space is walked beyond the base, to see what carrying over missed; the others
        train the carried point only.
    base_rules : mapping of str to str
        Rule → the rule under which the base is trained for it; itself where it is not among them. At the base every
        rule is the standard parametrization bit for bit, so that one set of runs may serve them all.
    space : mapping of str to sequence or Optuna distribution
        What is tuned.
    swept : tuple of str, optional
        Without: every combination is a point. With: ``lr`` is tuned first, then each of these is walked by itself, the
        others staying at the best learning rate and at ``defaults``.
    defaults : mapping
        Value of each hyperparameter, besides lr, where it is not walked.
    seeds : tuple of int
    n_trials : int, optional
        Points of a search, where the space has a distribution.
    fixed : mapping
        Settings that every run has.
    under : mapping of str to dict
        Rule → settings that its runs have besides.
    extends : mapping of str to int
        Hyperparameter → by how many values its grid may grow at the base, one at a time, while the best one lies at an
        edge. What is asked of a folder is the grid without them.
    notes : tuple of str
        What a reader must know besides.
    about : str
        What it measures, in a phrase.
    """

    name: str
    space: Mapping[str, Any]
    seeds: tuple[int, ...]
    sizes: Mapping[str | None, Any] = field(default_factory=lambda: {None: None})
    rules: tuple[str | None, ...] = (None,)
    searched: tuple[str | None, ...] = ()
    base_rules: Mapping[Any, Any] = field(default_factory=dict)
    swept: tuple[str, ...] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    n_trials: int | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    under: Mapping[Any, Mapping[str, Any]] = field(default_factory=dict)
    extends: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    about: str = ""

    @property
    def base(self) -> str | None:
        """Label of the size at which hyperparameters are tuned."""
        return next(iter(self.sizes))

    @property
    def target(self) -> str | None:
        """Label of the last size."""
        return list(self.sizes)[-1]

    @property
    def search(self) -> bool:
        """Whether Optuna proposes the points at the base."""
        return is_search(self.space)

    def trained_as(self, size: str | None, rule: str | None) -> str | None:
        """The rule under which a size is trained for ``rule``."""
        return self.base_rules.get(rule, rule) if size == self.base else rule

    def cells(self) -> list[tuple[str | None, str | None]]:
        """Every (size, rule) that is trained, base first."""
        return list(dict.fromkeys((size, self.trained_as(size, rule)) for size in self.sizes for rule in self.rules))

    def point(self, size: str | None, rule: str | None, params: Params) -> Point:
        """The point that answers for these hyperparameters at a size under a rule."""
        return Point(size, self.trained_as(size, rule), dict(params))

    def config(self, point: Point, seed: int) -> dict[str, Any]:
        """What ``train`` is given."""
        model = {}
        if self.sizes[point.size] is not None:
            model = {"model": dict(self.sizes[point.size]), "base": dict(self.sizes[self.base]), "rule": point.rule}
        return {**self.fixed, **self.under.get(point.rule, {}), **model, **point.params, "seed": seed}

    def tuning(self) -> list[Point]:
        """The points on which everything else depends: the base's grid; none where Optuna proposes them."""
        if self.search:
            return []
        grid = points(self.space) if self.swept is None else [{**self.defaults, "lr": lr} for lr in self.space["lr"]]
        return _unique(self.point(self.base, rule, params) for rule in self.rules for params in grid)

    def walk(self, size: str | None, rule: str | None, name: str | None, centre: Params) -> list[Point]:
        """The points over which a size is searched: the whole grid, or one hyperparameter around ``centre``."""
        if size != self.base and rule not in self.searched:
            return []
        grid = points(self.space) if name is None else [{**centre, name: value} for value in self.space[name]]
        return _unique(self.point(size, rule, params) for params in grid)

    @property
    def walks(self) -> tuple[str | None, ...]:
        """Hyperparameters that are walked by themselves, or None for every combination of all."""
        return (None,) if self.swept is None else self.swept

    def rest(self, centres: Centres) -> list[Point]:
        """What is trained once the base's best points are known."""
        wanted = []
        for size in self.sizes:
            for rule in self.rules:
                if size != self.base:
                    wanted.append(self.point(size, rule, centres[rule]))
                if not self.search:
                    for name in self.walks:
                        wanted += self.walk(size, rule, name, centres[rule])
        return _unique(wanted)

    def grown(self, best: Params) -> Study | None:
        """The study with one more value beyond the edge at which the base's best point lies; None where none may come."""
        for name, more in self.extends.items():
            values = sorted(self.space[name])
            edge = edge_of(best.get(name), values)
            if more > 0 and edge is not None:
                new = values[0] ** 2 / values[1] if edge == "lowest" else values[-1] ** 2 / values[-2]
                space = {**self.space, name: sorted([*values, float(f"{new:.12g}")])}
                return replace(self, space=space, extends={**self.extends, name: more - 1})
        return None

    def stand_in(self) -> Centres:
        """Any point in the place of the best one: as many runs, at the same cost. For telling them beforehand."""
        first = {k: v.high if is_distribution(v) and hasattr(v, "high") else _first(v) for k, v in self.space.items()}
        first = first if self.swept is None else {**self.defaults, "lr": self.space["lr"][0]}
        return dict.fromkeys(self.rules, first)

    def planned(self) -> list[Point]:
        """Every point, in the order in which they start; the base's best one is stood in for by any other."""
        centres, tuned = self.stand_in(), self.tuning()
        if self.search:
            tuned = [self.point(self.base, self.rules[0], centres[self.rules[0]])] * (self.n_trials or 0)
            return tuned + self.rest(centres)
        return _unique([*tuned, *self.rest(centres)])

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that decides what a run is, as JSON; a folder is resumed only with the same."""
        return describe(
            {
                "name": self.name,
                "sizes": [[label, size] for label, size in self.sizes.items()],
                "rules": self.rules,
                "searched": self.searched,
                "base_rules": [[rule, self.trained_as(self.base, rule)] for rule in self.rules],
                "search" if self.search else "grid": self.space,
                "swept": self.swept,
                "defaults": self.defaults,
                "seeds": self.seeds,
                "n_trials": self.n_trials,
                "fixed": self.fixed,
                "under": [[rule, settings] for rule, settings in self.under.items()],
                "rule_version": RULE_VERSION,
            }
        )

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Study:
        """The study that these settings describe."""
        known = {k: settings[k] for k in ("name", "defaults", "n_trials", "fixed")}
        sequences = {k: tuple(settings[k]) for k in ("rules", "searched", "seeds")}
        return cls(
            **known,
            **sequences,
            sizes=dict(settings["sizes"]),
            base_rules=dict(settings["base_rules"]),
            space={
                key: _with(_read(values), settings.get("extended", {}).get(key, ()))
                for key, values in (settings.get("grid") or settings["search"]).items()
            },
            swept=None if settings["swept"] is None else tuple(settings["swept"]),
            under=dict(settings["under"]),
        )


def _with(values: Any, more: Sequence[float]) -> Any:
    return sorted([*values, *more]) if more else values


def _read(values: Any) -> Any:
    if not isinstance(values, Mapping):
        return values
    from optuna.distributions import json_to_distribution

    return json_to_distribution(values["distribution"])


def _first(values: Any) -> Any:
    return values[0] if isinstance(values, Sequence) else getattr(values, "choices", (None,))[0]


def _unique(wanted: Iterable[Point]) -> list[Point]:
    found: dict[tuple, Point] = {}
    for point in wanted:
        found.setdefault(point.key, point)
    return list(found.values())


def the(size: str | None) -> str:
    """A size in a sentence: ``the target``, but ``K = 8``."""
    return f"the {size}" if size in ("proxy", "target") else str(size)


def describe(value: Any) -> Any:
    """``value`` as JSON that is the same in every process, for comparing settings."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(k): describe(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [describe(v) for v in value]
    if isinstance(value, functools.partial):
        return [describe(value.func), describe(value.args), describe(value.keywords)]
    if is_distribution(value):
        from optuna.distributions import distribution_to_json

        return {"distribution": distribution_to_json(value)}
    if hasattr(value, "__qualname__"):  # without its module: that of a script is __main__ when it runs, not when imported
        return value.__qualname__
    # Addresses differ between processes and would make every resume look like another study.
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """What differs between two descriptions, one phrase each: ``fixed.epochs was 2 and is now 3``."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        return [d for k in keys for d in differences(old.get(k), new.get(k), f"{where}.{k}" if where else str(k))]
    return [] if _same(old, new) else [f"{where} was {_short(old)} and is now {_short(new)}"]


def _same(old: Any, new: Any) -> bool:
    """Whether two descriptions are equal; functions used to be described with their modules."""
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_same, old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        return set(old) == set(new) and all(_same(old[key], new[key]) for key in old)
    if isinstance(old, str) and isinstance(new, str) and old.endswith(f".{new}"):
        return all(part.isidentifier() for part in old.replace("<", "").replace(">", "").split("."))
    return old == new


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "…"


def refuse_other_settings(old: Mapping[str, Any], new: Mapping[str, Any], where: str) -> None:
    """MupError unless the new settings are the old ones, or have grown: a longer grid, more seeds and trials.

    Rules may come and go: the runs of a size under a rule are kept by themselves, so what is compared changes no run. Only
    what a rule means, and what belongs to it, must be the same.
    """
    differ = []
    changed = set(FORMER_RULES.get(old.get("rule_version", 1), ()))
    if hit := sorted(changed & set(filter(None, old.get("rules", ())))):
        differ.append(f"the rule {hit[0]} has another formula since")
    for key in dict.fromkeys([*old, *new]):
        before, now = old.get(key), new.get(key)
        if key == "searched" and before:  # what is not compared is not searched either
            before = [rule for rule in before if rule in new.get("rules", ())]
        # In a search a point's value is its mean over the seeds, so there the seeds are part of the question.
        if (
            key not in ("name", "rule_version", "extended")
            and not _same(before, now)
            and not (_grown(key, before, now) and not (key == "seeds" and "search" in new))
        ):
            differ += differences(before, now, key)
    if differ:
        raise MupError(
            f"{where} holds a study with other settings: {'; '.join(differ)}. Its runs cannot be mixed with these: give the "
            "same settings to resume it (a grid of numbers, seeds and n_trials may grow, and rules may come and go), or "
            "choose another folder."
        )


#: Settings that are lists of pairs, each with a rule in front.
_BY_RULE = ("base_rules", "under")


def with_former_rules(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The new settings with the rules that the old ones have besides: the runs under these are kept, and may be asked for
    again, so what they were is still to be compared."""
    kept = {key: {**dict(old.get(key, ())), **dict(new[key])} for key in _BY_RULE}
    rules = list(dict.fromkeys([*new["rules"], *old.get("rules", ())]))
    return {**new, "rules": rules, **{key: [[rule, value] for rule, value in pairs.items()] for key, pairs in kept.items()}}


def _grown(key: str, old: Any, new: Any) -> bool:
    if old is None or new is None:
        return False
    if key == "grid":
        numbers = all(isinstance(v, (int, float)) for k in new for v in new[k] if new[k] != old.get(k))
        return set(old) == set(new) and numbers and all(_contains(new[k], old[k]) for k in old)
    if key in ("seeds", "searched"):
        return _contains(new, old)
    if key == "rules":
        return True
    if key in _BY_RULE:
        before, now = dict(old), dict(new)
        return all(before[rule] == now[rule] for rule in before.keys() & now.keys())
    return key == "n_trials" and new >= old


def _contains(new: Sequence[Any], old: Sequence[Any]) -> bool:
    keys = {params_key({"": v}) for v in new}
    return all(params_key({"": v}) in keys for v in old)
