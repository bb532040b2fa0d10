"""Settings in which the best learning rate of MuSOAP is searched.

Most settings change one factor of a problem's centre: steps, batch size, depth, width, modes, samples or grid. Others change
several factors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: Problems that were used to choose the formula, and held-out problems.
CHOSEN_ON = ("burgers", "darcy", "allen-cahn")
REPORTED_ON = ("korteweg-de-vries", "gray-scott", "navier-stokes", "darcy-pino")

#: Factors of the centre of all problems, and those of each problem.
CENTRE = {"steps": 1000, "batch": 20, "depth": 4}
PROBLEMS = {
    "burgers": {"samples": 800, "grid": 64, "modes": (24,), "width": 24},
    "darcy": {"samples": 400, "grid": 16, "modes": (8, 8), "width": 16},
    "allen-cahn": {"samples": 400, "grid": 16, "modes": (8, 8), "width": 16},
    "korteweg-de-vries": {"samples": 800, "grid": 64, "modes": (32,), "width": 24},
    "gray-scott": {"samples": 400, "grid": 20, "modes": (10, 10), "width": 16},
    "navier-stokes": {"samples": 100, "grid": 12, "modes": (6, 6, 6), "width": 12, "batch": 5},
    "darcy-pino": {"samples": 200, "grid": 16, "modes": (8, 8), "width": 16},
}
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Setting:
    """A problem, and the factors that differ from its centre.

    Attributes
    ----------
    problem : str
    changes : tuple of (str, value)
        Any of ``steps``, ``batch``, ``depth``, ``width``, ``modes``, ``samples`` and ``grid``. Also ``skip`` (``fno_skip``
        of the model), ``refresh`` (of MuSOAP) and ``aux`` (the learning rate of AdamW relative to that of the kernels).
    """

    problem: str
    changes: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, problem: str, **changes: Any) -> Setting:
        return cls(problem, tuple(sorted(changes.items())))

    @property
    def factors(self) -> dict[str, Any]:
        """Return all factors, including those of the centre."""
        return {**CENTRE, **PROBLEMS[self.problem], **dict(self.changes)}

    @property
    def centre(self) -> Setting:
        """Return the setting without changes."""
        return Setting(self.problem)

    def __str__(self) -> str:
        return ", ".join(f"{k} {'×'.join(map(str, v)) if isinstance(v, tuple) else v}" for k, v in self.changes) or "centre"


def _rows(problems: Iterable[str], *changes: Mapping[str, Any]) -> list[Setting]:
    return [Setting.of(problem, **own) for own in changes for problem in problems]


def scaled(value: Any, factor: float) -> Any:
    """Return a multiple of a number, or of numbers of modes, which are even."""
    return tuple(max(2, 2 * round(n * factor / 2)) for n in value) if isinstance(value, tuple) else int(value * factor)


def _scaled(problems: Iterable[str], *changes: tuple[str, float]) -> list[Setting]:
    """Return settings in which a factor of the problem is multiplied."""
    return [Setting.of(p, **{k: scaled(PROBLEMS[p][k], by)}) for p in problems for k, by in changes]


_KDV, _GRAY_SCOTT, _FLOW, _PINO = REPORTED_ON
TINY = _rows(("burgers", _KDV), {}, {"steps": 250}, {"depth": 2})
SETTINGS = [
    *_rows(CHOSEN_ON, {}, {"steps": 250}, {"steps": 4000}, {"batch": 160}, {"batch": 5}, {"depth": 16}, {"steps": 2000}),
    *_rows((_KDV, _GRAY_SCOTT, _FLOW), {}, {"steps": 250}),
    *_rows((_KDV,), {"steps": 4000}, {"batch": 5}, {"batch": 160}, {"depth": 16}),
    *_rows((_GRAY_SCOTT,), {"batch": 5}),
    *_rows((_FLOW,), {"batch": 2}),
    *_rows(("burgers",), {"width": 64}),
    *_rows(CHOSEN_ON, {"steps": 500}, {"depth": 2}, {"batch": 40}, {"depth": 8}),
    *_rows((_KDV,), {"steps": 500, "batch": 80, "width": 48, "depth": 6}, {"steps": 2000, "batch": 10, "width": 48}),
    *_rows((_KDV, _GRAY_SCOTT, _PINO), {"steps": 3000, "batch": 10, "depth": 2}, {"steps": 400, "batch": 10, "depth": 8}),
    *_rows((_FLOW,), {"steps": 3000, "batch": 2, "depth": 2}, {"steps": 400, "batch": 2, "depth": 8}),
    *_rows((_PINO,), {}, {"steps": 250}, {"batch": 5}),
    *_rows(("burgers",), {"steps": 4000, "batch": 5}),
    *_rows(CHOSEN_ON, {"steps": 250, "batch": 160}, {"aux": 0.13, "steps": 250}, {"aux": 0.13, "steps": 2000}),
    *_rows(CHOSEN_ON, {"skip": "identity"}),
    *_rows(("burgers",), {"refresh": 1, "batch": 160}, {"skip": "identity", "depth": 16}),
    *_scaled(CHOSEN_ON, ("samples", 0.25), ("samples", 4), ("modes", 0.5), ("modes", 1.75)),
    *_scaled(("burgers",), ("grid", 2)),
    *_rows(REPORTED_ON, {"depth": 2}),
    *_rows((_KDV, _GRAY_SCOTT, _FLOW), {"steps": 2000}),
    *_rows((_KDV,), {"width": 48}),
    *_scaled(REPORTED_ON, ("samples", 0.25)),
    *_rows(CHOSEN_ON, {"batch": 10}, {"batch": 80}),
]
#: Held-out settings that take longest. They are trained with one seed.
_LONGEST = [
    *_rows((_KDV,), {"steps": 4000}, {"batch": 160}, {"depth": 16}, {"steps": 2000, "batch": 10, "width": 48}),
    *[s for s in SETTINGS if s.problem in (_GRAY_SCOTT, _FLOW, _PINO) and s.factors["steps"] >= 2000],
]
#: Settings with several seeds, so that the regret does not depend on one of them: most held-out settings, and some others.
SEEDED = [
    *_rows(CHOSEN_ON, {}, {"steps": 250}, {"batch": 5}),
    *[s for s in SETTINGS if s.problem in REPORTED_ON and s not in _LONGEST],
]
