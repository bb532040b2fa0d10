"""Formulas for the learning rate, and their fit to measured curves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from experiments.curves import Curve
from experiments.law_settings import CENTRE, Setting

FACTORS = ("steps", "batch", "depth", "width", "modes", "samples", "grid")
#: Values of the factors. There a formula equals its constant.
REFERENCE = {**CENTRE, "width": 16, "modes": 10, "samples": 400, "grid": 16, "epochs": 50}

Curves = dict[Setting, Curve]


@dataclass(frozen=True)
class Formula:
    """The learning rate constant · Π (factor / reference)^power.

    Attributes
    ----------
    name : str
    powers : mapping of str to float
        Fixed powers.
    free : tuple of str
        Factors with fitted powers.
    constant : float, optional
        By default, it is fitted.
    """

    name: str
    powers: Mapping[str, float] = field(default_factory=dict)
    free: tuple[str, ...] = ()
    constant: float | None = None

    def predict(self, setting: Setting) -> float:
        """Return log2 of the learning rate."""
        return math.log2(self.constant or 1.0) + sum(power * log_size(setting, k) for k, power in self.powers.items())

    def regrets(self, curves: Curves) -> list[float]:
        """Return the regret of the formula in each setting."""
        return [curve.regret(self.predict(setting)) for setting, curve in curves.items()]


_DEPTH = {"depth": -0.5}
#: The default of ``MuSOAP(model, steps=…)``.
OURS = Formula("**the formula**", {"steps": -0.5, **_DEPTH}, constant=0.03)
FORMULAS = (
    OURS,
    Formula("0.03 for any number of steps", _DEPTH, constant=0.03),
    Formula("steps^−0.32 ([arXiv:2603.28743](https://arxiv.org/abs/2603.28743))", {"steps": -0.32, **_DEPTH}),
    Formula("with the root of the batch size", {"steps": -0.5, "batch": 0.5, **_DEPTH}),
    Formula("with 1/depth ([arXiv:2505.01618](https://arxiv.org/abs/2505.01618))", {"steps": -0.5, "depth": -1.0}),
    Formula("without depth", {"steps": -0.5}, constant=0.03),
    Formula("with a fitted power of the epochs", {"steps": -0.5, **_DEPTH}, ("epochs",)),
    Formula("fitted powers of steps, batch size and depth", free=("steps", "batch", "depth")),
)


def log_size(setting: Setting, factor: str) -> float:
    """Return log2 of a factor divided by its reference. ``epochs`` follow from steps, batch size and samples."""
    f = setting.factors
    value = f["steps"] * f["batch"] / f["samples"] if factor == "epochs" else f[factor]
    return math.log2((value[0] if isinstance(value, tuple) else value) / REFERENCE[factor])


def fitted(formula: Formula, curves: Curves) -> Formula:
    """Return the formula with a least-squares fit of its free powers and its constant.

    Settings are weighted by the curvature of their curves. As far as curves are parabolas, the fit minimizes the sum of the
    regrets.
    """
    curved = {setting: curve for setting, curve in curves.items() if curve.curvature > 0}
    if formula.constant is not None or not curved:
        return formula
    weights = np.sqrt([curve.curvature for curve in curved.values()])
    residuals = np.array([curve.best - formula.predict(setting) for setting, curve in curved.items()])
    columns = np.array([[1.0, *(log_size(setting, factor) for factor in formula.free)] for setting in curved])
    constant, *powers = np.linalg.lstsq(columns * weights[:, None], residuals * weights, rcond=None)[0]
    found = dict(zip(formula.free, map(float, powers), strict=True))
    return replace(formula, powers={**formula.powers, **found}, constant=float(2**constant))


def power_of(curves: Curves, problem: str, factor: str) -> float | None:
    """Return the power of the best rate in one factor, with the others at the centre. Return None if it was not varied."""
    along = {s: c for s, c in curves.items() if s.problem == problem and {factor} >= set(dict(s.changes))}
    sizes = [log_size(setting, factor) for setting in along]
    return np.polyfit(sizes, [curve.best for curve in along.values()], 1)[0] if len(set(sizes)) > 1 else None
