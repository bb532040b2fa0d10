"""A law for the learning rate: where the best one lies over steps, batch, depth, width, modes, samples and resolution.

One factor at a time around a centre on each problem, and several at once on problems that nothing is chosen on. Rates of a
setting begin at a guess with a factor of 2 to either side, go on where the best lies at an edge, and end with a factor of
sqrt(2) to either side of the best: five or six runs. Settings stand in the order of what they tell, so that an experiment
that is stopped leaves a usable table.

The base has half of the centre's width, whatever the width of a setting is, as under a reference size; its modes and depth
are the model's. The rate is the size of an update itself (``base_depth=None``), so that the rule for depth is one of the
candidates and not part of what is measured.

Hypotheses, written down before measuring:

* The best rate goes as steps^-0.32 (arXiv:2603.28743) or as steps^-0.5 (what ``training={"steps": …}`` does).
* Batch has no rule (docs/evidence/learning_rate.md), or it goes as the root of the batch (arXiv:2205.10287), or
  ``refresh=1`` is what large batches need (arXiv:2607.20548).
* Depth: 1/sqrt(depth), today's, or 1/depth (arXiv:2505.01618), which was proven for identity skips.
* Width, modes, samples and resolution need none.
* AdamW's rate of the other parameters (``aux_lr``) stays, or follows the rate of the kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from experiments.kept import loss_of, missing
from experiments.training import remembered, run_of
from neuralop_mup.lab.records import Run
from neuralop_mup.optim.musoap.optimizer import default_lr

CHOSEN_ON = ("burgers", "darcy", "allen-cahn")
REPORTED_ON = ("korteweg-de-vries", "gray-scott", "navier-stokes", "darcy-pino")

#: The centre that all problems share, and what is each problem's own.
CENTRE: dict[str, Any] = {"steps": 1000, "batch": 20, "depth": 4}
PROBLEMS: dict[str, dict[str, Any]] = {
    "burgers": {"samples": 800, "grid": 64, "modes": (24,), "width": 24},
    "darcy": {"samples": 400, "grid": 16, "modes": (8, 8), "width": 16},
    "allen-cahn": {"samples": 400, "grid": 16, "modes": (8, 8), "width": 16},
    "korteweg-de-vries": {"samples": 800, "grid": 64, "modes": (32,), "width": 24},
    "gray-scott": {"samples": 400, "grid": 20, "modes": (10, 10), "width": 16},
    "navier-stokes": {"samples": 100, "grid": 12, "modes": (6, 6, 6), "width": 12, "batch": 5},
    "darcy-pino": {"samples": 200, "grid": 16, "modes": (8, 8), "width": 16},
}
_MORE_DATA = {"navier-stokes": {"time_points": 8}}

SEEDS = (0, 1, 2)
#: The middle of the grid of rates, and its end: the highest is RATE · sqrt(2)^MOST.
RATE, MOST = 0.03, 10


@dataclass(frozen=True)
class Setting:
    """A problem and how it differs from its centre.

    ``changes``: any of ``steps``, ``batch``, ``depth``, ``width``, ``modes``, ``samples``, ``grid``; ``skip``, neuralop's
    ``fno_skip``; ``refresh``, MuSOAP's; ``aux``: AdamW's rate over that of the kernels, where it follows that.
    """

    problem: str
    changes: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, problem: str, **changes: Any) -> Setting:
        return cls(problem, tuple(sorted(changes.items())))

    @property
    def factors(self) -> dict[str, Any]:
        """All of them, the centre's too."""
        return {**CENTRE, **PROBLEMS[self.problem], **dict(self.changes)}

    @property
    def centre(self) -> Setting:
        """The one without changes."""
        return Setting(self.problem)

    def __str__(self) -> str:
        return ", ".join(f"{k} {'×'.join(map(str, v)) if isinstance(v, tuple) else v}" for k, v in self.changes) or "centre"


def _rows(problems: Iterable[str], *changes: Mapping[str, Any]) -> list[Setting]:
    return [Setting.of(problem, **own) for own in changes for problem in problems]


def _scaled(problems: Iterable[str], *changes: tuple[str, float]) -> list[Setting]:
    """A factor of the problem's own, so many times."""

    def times(value: Any, by: float) -> Any:
        return tuple(int(n * by) for n in value) if isinstance(value, tuple) else int(value * by)

    return [Setting.of(p, **{k: times(PROBLEMS[p][k], by)}) for p in problems for k, by in changes]


_WAVES, _GREY, _FLOW, _PINO = REPORTED_ON
TINY = _rows(("burgers", _WAVES), {}, {"steps": 250}, {"depth": 2})
#: What is measured before further seeds are, and after. The longest settings are those of problems in 1D, which are cheap.
FIRST = [
    *_rows(CHOSEN_ON, {}, {"steps": 250}, {"steps": 4000}, {"batch": 160}, {"batch": 5}, {"depth": 16}, {"steps": 2000}),
    *_rows((_WAVES, _GREY, _FLOW), {}, {"steps": 250}),
    *_rows((_WAVES,), {"steps": 4000}, {"batch": 5}, {"batch": 160}, {"depth": 16}),
    *_rows((_GREY,), {"batch": 5}),
    *_rows((_FLOW,), {"batch": 2}),
]
REST = [
    *_rows(("burgers",), {"width": 64}),
    *_rows(CHOSEN_ON, {"steps": 500}, {"depth": 2}, {"batch": 40}, {"depth": 8}),
    *_rows((_WAVES,), {"steps": 500, "batch": 80, "width": 48, "depth": 6}, {"steps": 2000, "batch": 10, "width": 48}),
    *_rows((_WAVES, _GREY, _PINO), {"steps": 3000, "batch": 10, "depth": 2}, {"steps": 400, "batch": 10, "depth": 8}),
    *_rows((_FLOW,), {"steps": 3000, "batch": 2, "depth": 2}, {"steps": 400, "batch": 2, "depth": 8}),
    *_rows((_PINO,), {}, {"steps": 250}, {"batch": 5}),
    *_rows(("burgers",), {"steps": 4000, "batch": 5}),  # do the two act by themselves?
    *_rows(CHOSEN_ON, {"steps": 250, "batch": 160}, {"aux": 0.13, "steps": 250}, {"aux": 0.13, "steps": 2000}),
    *_rows(CHOSEN_ON, {"skip": "identity"}),
    *_rows(("burgers",), {"refresh": 1, "batch": 160}, {"skip": "identity", "depth": 16}),
    *_scaled(CHOSEN_ON, ("samples", 0.25), ("samples", 4), ("modes", 0.5), ("modes", 1.75)),
    *_scaled(("burgers",), ("grid", 2)),
    *_rows(REPORTED_ON, {"depth": 2}),
    *_rows((_WAVES, _GREY, _FLOW), {"steps": 2000}),
    *_rows((_WAVES,), {"width": 48}),
    *_scaled(REPORTED_ON, ("samples", 0.25)),
    *_rows(CHOSEN_ON, {"batch": 10}, {"batch": 80}),
]
#: Settings of the reported problems that take longest: one seed.
_LONGEST = [
    *_rows((_WAVES,), {"steps": 4000}, {"batch": 160}, {"depth": 16}, {"steps": 2000, "batch": 10, "width": 48}),
    *[s for s in REST if s.problem in (_GREY, _FLOW, _PINO) and s.factors["steps"] >= 2000],
]
#: What gets further seeds, so that what a law loses there is not what one run lost: the problems that nothing is
#: chosen on, since what the law loses there is the answer, and some of the others.
SEEDED = [
    *_rows(CHOSEN_ON, {}, {"steps": 250}, {"batch": 5}),
    *[s for s in FIRST + REST if s.problem in REPORTED_ON and s not in _LONGEST],
]


@dataclass(frozen=True)
class Law:
    """The experiment; its page is that of :class:`experiments.law_page.LawWithPage`."""

    small: bool = False

    about = "where the best learning rate of MuSOAP lies over steps, batch, depth, width, modes and data"

    def tiny(self) -> Law:
        """Two problems of a few samples, small models and short runs."""
        return replace(self, small=True)

    def rate(self, i: int) -> float:
        """A rate of the grid, which all settings share."""
        return float(f"{RATE * 2 ** (i / 2):.4g}")

    @remembered
    def run(self, setting: Setting, i: int, seed: int = 0) -> Run:
        """A run of a setting at a rate of the grid."""
        labels = {"size": f"{setting.problem}, {setting}", "params": {"lr": self.rate(i)}, "seed": seed}
        return run_of(self._config(setting, i, seed), **labels)

    def _config(self, setting: Setting, i: int, seed: int) -> dict[str, Any]:
        f = setting.factors
        size = {"n_modes": f["modes"], "n_layers": f["depth"], **({"fno_skip": f["skip"]} if "skip" in f else {})}
        own: dict[str, Any] = {"base_depth": None, **({"refresh": f["refresh"]} if "refresh" in f else {})}
        less = {"n_val": 20, "n_test": 20} if self.small else {}
        if self.small:
            f = {**f, "steps": f["steps"] // 250 * 50, "samples": 40, "width": 8}
        return {
            "problem": setting.problem,
            "data": {"n_train": f["samples"], "grid": f["grid"], **_MORE_DATA.get(setting.problem, {}), **less},
            "steps": f["steps"],
            "batch_size": f["batch"],
            "model": {**size, "hidden_channels": f["width"]},
            "base": {**size, "hidden_channels": 4 if self.small else PROBLEMS[setting.problem]["width"] // 2},
            "optimizer": "soap",
            "weight_decay": 0.0,  # nor is it in the law
            "lr": self.rate(i),
            **({"aux_lr": f["aux"] * self.rate(i)} if "aux" in f else {}),
            "kernel_init": "small",
            "soap": own,
            "seed": seed,
        }

    # What is wanted

    def settings(self) -> list[Setting]:
        """All settings, in the order of what they tell."""
        return TINY if self.small else FIRST + REST

    def seeds(self, setting: Setting) -> tuple[int, ...]:
        """Of a setting; further ones follow once the first has shown where the best rate lies."""
        return SEEDS if setting in SEEDED and not self.small else SEEDS[:1]

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """The runs that are still wanted, the most telling first; a pure function of the records."""
        settings, first = self.settings(), 0 if self.small else len(FIRST)
        yield from self._searching(records, settings[:first])
        yield from self._seeding(records)
        yield from self._searching(records, settings[first:])
        yield from self._seeding(records)

    def _seeding(self, records: Any) -> Iterator[Run]:
        """Further seeds near the best rate of the first one, and at the law's."""
        for setting in () if self.small else SEEDED:
            errors = self.errors(records, setting)
            if any(i not in errors for i in self.asked(records, setting)):
                continue
            best, own = min(errors, key=errors.__getitem__, default=0), self.by_the_law(setting)
            near = [i for i in sorted(errors) if (abs(i - best) <= 2 or i == own) and math.isfinite(errors[i])]
            yield from missing(records, (self.run(setting, i, seed) for seed in SEEDS[1:] for i in near))

    def _searching(self, records: Any, settings: Iterable[Setting]) -> Iterator[Run]:
        for setting in settings:
            yield from missing(records, (self.run(setting, i) for i in self.asked(records, setting)))

    def errors(self, records: Any, setting: Setting, seed: int = 0) -> dict[int, float]:
        """Number of the rate → validation error, infinite where it did not train; of the runs that are done."""
        found = {i: loss_of(records.get(self.run(setting, i, seed))) for i in range(-16, MOST + 1)}
        return {i: loss for i, loss in found.items() if loss is not None}

    def asked(self, records: Any, setting: Setting) -> list[int]:
        """Numbers of the rates that a setting asks for so far; none before its problem's centre is done."""
        start = 0
        if setting.changes:
            errors = self.errors(records, setting.centre)
            if any(i not in errors for i in self.asked(records, setting.centre)):
                return []
            start = min(errors, key=errors.__getitem__) + self._shift(setting)
        found = rates(self.errors(records, setting), max(-12, min(start, MOST - 2)), MOST)
        return found if self.small else list(dict.fromkeys([*found, self.by_the_law(setting)]))

    def by_the_law(self, setting: Setting) -> int:
        """The rate next to the law's, the middle one over steps and depth, so that its regret is measured."""
        f = setting.factors
        return min(MOST, round(2 * math.log2(default_lr(f["steps"], 1e-3) / 1e-3 * math.sqrt(4 / f["depth"]))))

    def _shift(self, setting: Setting) -> int:
        """A guess of how far the best rate lies from the centre's, only to begin there."""
        here, there = setting.factors, setting.centre.factors
        powers = {"steps": -0.4, "batch": 0.25, "depth": -0.5}
        return round(2 * sum(power * math.log2(here[k] / there[k]) for k, power in powers.items()))


def rates(errors: Mapping[int, float], start: int, most: int, least: int = -16) -> list[int]:
    """Numbers of the rates that a search asks for, given the errors of those that are done.

    A factor of 2 (two numbers) to either side of the start, on beyond an edge while the best lies there, and then one number
    to either side of the best.
    """
    asked = [start, start - 2, start + 2]
    while all(i in errors for i in asked):
        best = min(asked, key=lambda i: errors[i])
        if math.isinf(errors[best]):
            best = min(asked)  # nothing trains there: lower
        beyond = best - 2 if best == min(asked) else best + 2 if best == max(asked) else None
        if beyond is None or not least <= beyond <= most:
            return asked + [i for i in (best - 1, best + 1) if least <= i <= most]
        asked.append(beyond)
    return asked
